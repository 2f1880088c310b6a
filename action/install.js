// The redlock in PATH, or a downloaded version of it, verified by the checksums of its release.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { createHash } = require('node:crypto');
const { execFileSync } = require('node:child_process');
const { input } = require('./common.js');

const PROCESSORS = { x64: 'x86_64', arm64: 'aarch64' };

async function download(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return Buffer.from(await response.arrayBuffer());
}

async function install() {
  const version = input('version').replace(/^v/, '');
  if (!version) return 'redlock';
  if (!/^[0-9A-Za-z.+-]+$/.test(version)) throw new Error(`"${version}" is not a version`);
  const processor = PROCESSORS[process.arch];
  if (process.platform !== 'linux' || !processor) throw new Error('redlock needs Linux on x86_64 or aarch64');
  const { GITHUB_SERVER_URL, GITHUB_ACTION_REPOSITORY, GITHUB_REPOSITORY, RUNNER_TEMP } = process.env;
  const releases =
    input('download-url') || `${GITHUB_SERVER_URL}/${GITHUB_ACTION_REPOSITORY || GITHUB_REPOSITORY}/releases/download`;
  const name = `redlock-${version}-${processor}-unknown-linux-musl`;
  const base = `${releases}/v${version}`;

  const sums = (await download(`${base}/SHA256SUMS`)).toString();
  const line = sums.split('\n').find((text) => text.endsWith(` ${name}.tar.gz`));
  if (!line) throw new Error(`${base}/SHA256SUMS does not list ${name}.tar.gz`);
  const archive = await download(`${base}/${name}.tar.gz`);
  const sum = createHash('sha256').update(archive).digest('hex');
  if (sum !== line.split(' ')[0]) throw new Error(`${name}.tar.gz: wrong checksum ${sum}`);

  const directory = fs.mkdtempSync(path.join(RUNNER_TEMP, 'redlock-program-'));
  execFileSync('tar', ['-xzf', '-', '-C', directory, '--strip-components=1'], { input: archive });
  // Later steps can call redlock, too.
  fs.appendFileSync(process.env.GITHUB_PATH, `${directory}/bin\n`);
  return `${directory}/bin/redlock`;
}

module.exports = { install };
