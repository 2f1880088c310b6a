// Releases the lock, however the job has ended, and fails if the lock was lost before.
'use strict';
const fs = require('node:fs');
const { spawnSync } = require('node:child_process');
const { environment, input, lossFile, report } = require('./common.js');

const { STATE_monitor: monitor, STATE_directory: directory, STATE_redlock: redlock, STATE_token: token } = process.env;

// redlock's exit code for a lock that is no longer ours.
const LOST = 79;

let lost = Boolean(directory) && fs.existsSync(lossFile(directory));
if (token) {
  const env = { ...environment(), REDLOCK_KEY: input('key'), REDLOCK_TOKEN: token };
  const released = spawnSync(redlock, ['release'], { env, stdio: ['ignore', 'inherit', 'inherit'] });
  lost ||= released.status === LOST;
  if (released.status !== 0 && !lost) {
    report(`redlock release ended with ${released.status}: the lock on "${input('key')}" ends with its lease`);
    process.exitCode = 1;
  }
}
if (monitor) {
  try {
    process.kill(Number(monitor), 'SIGKILL');
  } catch {
    // It has ended with the job's loss, or with the container.
  }
}
if (directory) fs.rmSync(directory, { recursive: true, force: true });
if (lost) {
  report(`the lock on "${input('key')}" was lost while this job ran: another job may have run beside it`);
  process.exitCode = 1;
}
