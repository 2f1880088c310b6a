// Takes the lock. A keeper of redlock renews it as long as monitor.js lives, which lives as long as
// the runner's process for this job.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { environment, input, put, report } = require('./common.js');
const { install } = require('./install.js');

function acquireArguments(monitor) {
  const words = ['acquire', '--key', input('key'), '--watch-pid', String(monitor), '--on-lost', 'stop', '--shell'];
  for (const name of ['wait', 'ttl', 'label']) {
    if (input(name)) words.push(`--${name}`, input(name));
  }
  return words.concat(input('options').split('\n').map((word) => word.trim()).filter(Boolean));
}

// Resolves with the exit code and stdout. A cancelled job's signal goes to redlock, which leaves the
// queue.
function run(program, words) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, words, { env: environment(), stdio: ['ignore', 'pipe', 'inherit'] });
    let output = '';
    child.stdout.on('data', (data) => (output += data));
    child.on('error', reject);
    child.on('close', (code) => resolve({ code: code ?? 1, output }));
    for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => child.kill('SIGTERM'));
  });
}

// The variables that --shell prints, one `export NAME=WORD` for each.
function exported(text) {
  const found = {};
  for (const [, name, word] of text.matchAll(/^export (\w+)=((?:'[^']*'|\\'|[^'\s])*)$/gm)) {
    found[name] = word.replace(/'([^']*)'|\\'/g, (_, plain) => plain ?? "'");
  }
  return found;
}

async function main() {
  if (!input('key')) throw new Error('the input "key" is required');
  const redlock = await install();
  const directory = fs.mkdtempSync(path.join(process.env.RUNNER_TEMP, 'redlock-'));
  // In a job with `container:` the runner's process is outside of the container: its pid is 0.
  const monitor = spawn(process.execPath, [path.join(__dirname, 'monitor.js'), String(process.ppid), directory], {
    detached: true,
    stdio: 'ignore',
    env: process.env,
  });
  monitor.unref();
  // First of all, so that the post step ends the monitor, and with it the keeper, whatever happens.
  put('GITHUB_STATE', 'monitor', monitor.pid);
  put('GITHUB_STATE', 'directory', directory);
  put('GITHUB_STATE', 'redlock', redlock);
  const { code, output } = await run(redlock, acquireArguments(monitor.pid));
  if (code !== 0) {
    report(`no lock on "${input('key')}": redlock acquire ended with ${code}`);
    process.exit(code);
  }
  const variables = exported(output);
  put('GITHUB_STATE', 'token', variables.REDLOCK_TOKEN);
  put('GITHUB_OUTPUT', 'token', variables.REDLOCK_TOKEN);
  put('GITHUB_OUTPUT', 'fence', variables.REDLOCK_FENCE);
  // With REDLOCK_HELD among them, a step that asks for the same lock fails at once.
  for (const [name, value] of Object.entries(variables)) put('GITHUB_ENV', name, value);
}

main().catch((error) => {
  report(error.message);
  process.exit(1);
});
