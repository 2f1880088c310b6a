// Lives as long as the runner's process for this job, and is what redlock's keeper watches: when it
// ends, the lock is released. SIGTERM from the keeper means that the lock is lost: then the running
// step is stopped, or the next one if none is running, so that the job fails.
//
//   node monitor.js WORKER DIRECTORY
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { lossFile } = require('./common.js');

const worker = Number(process.argv[2]);
const directory = process.argv[3];
// The keeper sends its signal 5 s before the lease ends, or a third of it.
const GRACE_MS = 2000;

// The processes by pid, each with its parent: field 4 of /proc/PID/stat, after a name in
// parentheses.
function processes() {
  const found = new Map();
  for (const name of fs.readdirSync('/proc').filter((text) => /^\d+$/.test(text))) {
    try {
      const stat = fs.readFileSync(`/proc/${name}/stat`, 'utf8');
      const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      if (state !== 'Z') found.set(Number(name), Number(parent));
    } catch {
      // It has ended.
    }
  }
  return found;
}

// All processes of the running step: what descends from the runner's process.
function step() {
  const parents = processes();
  const isOfStep = (pid) => {
    const seen = [];
    for (let at = pid; at !== undefined && at > 0; at = parents.get(at)) {
      if (at === process.pid || (worker === 0 && at === 1)) return false;
      if (parents.get(at) === worker) return true;
      if (seen.push(at) > 1000) return false;
    }
    return false;
  };
  return [...parents.keys()].filter(isOfStep);
}

function send(pids, signal) {
  for (const pid of pids) {
    try {
      process.kill(pid, signal);
    } catch {
      // It has ended, or belongs to another user.
    }
  }
}

const isAlive = (pid) => pid === 0 || fs.existsSync(`/proc/${pid}`);

setInterval(() => isAlive(worker) || process.exit(0), 500);

const commandLine = (pid) => {
  try {
    return fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8');
  } catch {
    return '';
  }
};

function stopStep() {
  const pids = step();
  if (pids.length === 0) return false;
  // The job has ended: the post step reports the loss.
  if (pids.some((pid) => commandLine(pid).includes(path.join(__dirname, 'post.js')))) process.exit(0);
  send(pids, 'SIGTERM');
  setTimeout(() => {
    send(step(), 'SIGKILL');
    process.exit(0);
  }, GRACE_MS);
  return true;
}

let isLost = false;
process.on('SIGTERM', () => {
  if (isLost) return;
  isLost = true;
  fs.writeFileSync(lossFile(directory), '');
  if (stopStep()) return;
  const next = setInterval(() => stopStep() && clearInterval(next), 100);
});
process.on('SIGINT', () => {});
