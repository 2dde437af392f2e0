// BullMQ's worker.
'use strict';

const { Worker } = require('bullmq');
const { queues, concurrency, progress, connection } = require('../common');

module.exports = (handle) => {
  const work = async (job) => {
    handle(job.data);
    if (progress) await job.updateProgress(50);
  };
  for (const queue of queues) {
    const worker = new Worker(queue, work, { connection, concurrency });
    worker.on('error', (error) => console.error(error));
    worker.on('failed', (_, error) => console.error(error));
  }
};
