// The worker: works from the word on until its standard input ends.
'use strict';

const { samples, now, say, lines } = require('./common');
const begin = require(`./libraries/${process.argv[2]}`);

const seen = { count: 0, total: 0, first_us: 0, starts_us: new Array(samples).fill(0) };

// The handler of every library.
function handle({ order, lines: ordered }) {
  const start = now();
  if (seen.first_us === 0) seen.first_us = start;
  if (order < samples && seen.starts_us[order] === 0) seen.starts_us[order] = start;
  for (const line of ordered) seen.total += line.quantity * line.cents;
  seen.count += 1;
}

function tell() {
  let told = 0;
  setInterval(() => {
    if (seen.count !== told) {
      told = seen.count;
      say({ count: told });
    }
  }, 5);
}

async function main() {
  say('ready');
  let begun = false;
  for await (const _ of lines()) {
    if (!begun) {
      begin(handle);
      tell();
    }
    begun = true;
  }
  process.stdout.write(`${JSON.stringify({ ...seen, is_all: true })}\n`, () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
