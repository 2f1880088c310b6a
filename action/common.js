// What main.js and post.js share: the runner's inputs, files and commands, and the environment of
// redlock. See docs.github.com, "Workflow commands".
'use strict';
const fs = require('node:fs');
const { randomUUID } = require('node:crypto');

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] || '').trim();

// Appends NAME and VALUE to one of the runner's files: GITHUB_STATE, GITHUB_OUTPUT, GITHUB_ENV.
function put(file, name, value) {
  const end = `end-${randomUUID()}`;
  fs.appendFileSync(process.env[file], `${name}<<${end}\n${value}\n${end}\n`);
}

const escaped = (text) => text.replace(/%/g, '%25').replace(/\r/g, '%0D').replace(/\n/g, '%0A');

function report(text) {
  process.stdout.write(`::error title=redlock::${escaped(text)}\n`);
}

// The variables that redlock gets: passwords are never among its arguments.
function environment() {
  const variables = { ...process.env };
  for (const [name, variable] of [['redis', 'REDLOCK_REDIS'], ['password', 'REDLOCK_PASSWORD']]) {
    if (input(name)) variables[variable] = input(name);
  }
  // A lock on the runner's own file system excludes no other runner.
  variables.REDLOCK_REQUIRE_SERVER ||= '1';
  return variables;
}

// The file that tells the post step that the lock was lost.
const lossFile = (directory) => `${directory}/lost`;

module.exports = { environment, input, lossFile, put, report };
