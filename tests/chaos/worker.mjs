// A worker of a chaos run in Node. What it does for a job stands in the job's row, under its token.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

import { Permanent, Retry, Snooze, Worker } from '../../clients/node/dist/index.js';

const [, , queue, slots] = process.argv;
const worker = new Worker({ url: process.env.NATS_URL, queue, slots: Number(slots), graceMs: 2_000 });

worker.handle('task', async (job, ctx) => {
  const first = ctx.token === 1;
  ctx.log(`token ${ctx.token}`);
  const steps = Math.floor(job.lasts_ms / 50);
  for (let step = 0; step < steps; step++) {
    const message = `token ${ctx.token}`;
    await ctx.progress({ stage: 'working', percent: (100 * step) / steps, message, checkpoint: { step } });
    await sleep(50, undefined, { signal: ctx.signal });
  }
  const [act, attempt] = [job.act, ctx.attempt];
  if (act === 'fails at first' && attempt < 3) throw new Retry('as planned', { afterMs: 200 });
  if (act === 'never') throw new Permanent('as planned');
  if (act === 'panics') throw attempt < 4 ? new Error('as planned') : new Permanent('as planned, at last');
  if (act === 'aborts at first' && first) process.kill(process.pid, 'SIGKILL');
  if (act === 'snoozes' && first) throw new Snooze(700);
  // The whole worker: as a handler that never gives way does.
  if (act === 'blocks') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_500);
  // Silent for longer than stale_after.
  if (act === 'silent at first' && first) await sleep(5_000, undefined, { signal: ctx.signal });
  const more = {};
  if (act === 'steps') {
    more.drawn = await ctx.step('draw', () => randomUUID());
    await ctx.sleep('pause', 300);
  }
  if (act === 'asks') more.answer = await ctx.event('answer');
  return { n: job.n, token: ctx.token, ...more };
});

await worker.run();
