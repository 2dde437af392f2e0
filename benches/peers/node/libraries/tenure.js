// A worker of tenure's client for Node. Its jobs are enqueued by the program `peers`.
'use strict';

const { queues, concurrency, url } = require('../common');

const ends = (error) => {
  console.error(error ?? 'the worker has ended');
  process.exit(1);
};
const log = (level, message) => {
  if (level === 'warn' || level === 'error') console.error(message);
};

module.exports = async (handle) => {
  const { Worker } = await import('../../../../clients/node/dist/index.js');
  for (const queue of queues) {
    const worker = new Worker({ url, queue, slots: concurrency, log });
    worker.handle('order', handle);
    worker.serve().then(ends, ends);
  }
};
