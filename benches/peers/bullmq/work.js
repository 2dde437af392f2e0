// The worker: works from the word on until its standard input ends.
'use strict';

const { Worker } = require('bullmq');
const { queues, concurrency, samples, progress, connection, now, say, lines } = require('./common');

const seen = { count: 0, total: 0, first_us: 0, starts_us: new Array(samples).fill(0) };

async function handle(job) {
  const start = now();
  const { order, lines: ordered } = job.data;
  if (seen.first_us === 0) seen.first_us = start;
  if (order < samples && seen.starts_us[order] === 0) seen.starts_us[order] = start;
  for (const line of ordered) seen.total += line.quantity * line.cents;
  seen.count += 1;
  if (progress) await job.updateProgress(50);
}

function begin() {
  for (const queue of queues) {
    const worker = new Worker(queue, handle, { connection, concurrency });
    worker.on('error', (error) => console.error(error));
    worker.on('failed', (_, error) => console.error(error));
  }
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
    if (!begun) begin();
    begun = true;
  }
  process.stdout.write(`${JSON.stringify({ ...seen, is_all: true })}\n`, () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
