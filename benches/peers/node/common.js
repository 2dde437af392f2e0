// What the scripts read from the environment, and how they speak: a line of JSON each way, as src/speak.rs says.
'use strict';

const readline = require('node:readline');
const { performance } = require('node:perf_hooks');

// Of Redis, or of NATS.
const url = process.env.PEERS_URL;
const number = (name) => Number(process.env[name]);

module.exports = {
  queues: process.env.PEERS_QUEUES.split(','),
  concurrency: number('PEERS_CONCURRENCY'),
  batch: number('PEERS_BATCH'),
  payload: number('PEERS_PAYLOAD'),
  samples: number('PEERS_SAMPLES'),
  progress: number('PEERS_PROGRESS') === 1,
  url,
  // BullMQ's.
  connection: { host: '127.0.0.1', port: Number(new URL(url).port), maxRetriesPerRequest: null },
  // Microseconds since 1970.
  now: () => Math.round((performance.timeOrigin + performance.now()) * 1000),
  say: (what) => process.stdout.write(`${typeof what === 'string' ? what : JSON.stringify(what)}\n`),
  lines: () => readline.createInterface({ input: process.stdin, crlfDelay: Infinity }),
};
