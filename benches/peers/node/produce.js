// BullMQ's producer: does what it is asked until its standard input ends.
'use strict';

const { setTimeout: sleep } = require('node:timers/promises');
const { Queue } = require('bullmq');
const { queues, batch, payload, connection, now, say, lines } = require('./common');

const defaultJobOptions = { removeOnComplete: true };
const all = queues.map((name) => new Queue(name, { connection, defaultJobOptions }));

// The order of src/order.rs.
function example(order) {
  let note = 'deliver to the back door, please ring';
  if (payload > 150) {
    note = '';
    for (let n = order + 1; note.length < payload - 150; n += 1) note += `${Math.random().toString(16).slice(2)} `;
    note = note.slice(0, payload - 150);
  }
  const lines = [
    { sku: 'socket-12', quantity: 3, cents: 1250 },
    { sku: 'wrench-09', quantity: 1, cents: 4999 },
  ];
  return { order, customer: 'customer-00042', lines, note };
}

async function task(first, end, step) {
  for (let order = first; order < end; order += step) await all[0].add('order', example(order));
}

const acts = {
  async enqueue({ first, jobs, tasks }) {
    await Promise.all(Array.from({ length: tasks }, (_, at) => task(first + at, first + jobs, tasks)));
  },
  async batches({ jobs }) {
    for (let from = 0; from < jobs; from += batch) {
      const orders = Array.from({ length: Math.min(batch, jobs - from) }, (_, at) => example(from + at));
      await all[(from / batch) % all.length].addBulk(orders.map((data) => ({ name: 'order', data })));
    }
  },
  async paced({ first, jobs, every_ms }) {
    const spans = [];
    for (let order = first; order < first + jobs; order += 1) {
      const data = example(order);
      const called = now();
      await all[0].add('order', data);
      spans.push([called, now()]);
      await sleep(Math.max(0, every_ms - (now() - called) / 1000));
    }
    return spans;
  },
  async finished({ jobs }) {
    const since = now();
    for (;;) {
      const asked = now();
      const counts = await Promise.all(all.map((queue) => queue.getJobCountByTypes('wait', 'active', 'delayed')));
      if (counts.every((left) => left === 0)) return [[since, asked]];
      await sleep(2);
    }
  },
};

async function main() {
  await Promise.all(all.map((queue) => queue.waitUntilReady()));
  say('ready');
  for await (const line of lines()) {
    const ask = JSON.parse(line);
    const since = now();
    const spans = await acts[ask.do](ask);
    say(spans ?? [[since, now()]]);
  }
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
