/** The program under test: handlers whose every step a test can see, as JSON lines on standard output. */

import { writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import { Cancel, type Context, type Handler, type Log, Permanent, Retry, Snooze, Worker } from './index.js';

const SHOWN = new Set<unknown>(['ready', 'began', 'stopped', 'settled', 'lost']);
const { env } = process;

const show: Log = (level, message, { event, worker, job, kind, attempt, token, why, ...more }) => {
  if (SHOWN.has(event)) writeSync(1, `${JSON.stringify({ event, worker, job, kind, attempt, token, why })}\n`);
  else if (level !== 'debug') writeSync(2, `${level}: ${message} ${JSON.stringify(more)}\n`);
};
const hide: Log = (level, message) => {
  if (level === 'warn' || level === 'error') writeSync(2, `${level}: ${message}\n`);
};

/** As `kill -9`. */
async function die(): Promise<never> {
  process.kill(process.pid, 'SIGKILL');
  return sleep<never>(60_000);
}

function worker(queue: string, slots: number): Worker {
  const w = new Worker({
    url: env.NATS_URL ?? 'nats://127.0.0.1:4222',
    queue,
    slots,
    prefix: env.TENURE_SUBJECT_PREFIX ?? 'jobs',
    graceMs: Number(env.TENURE_SHUTDOWN_GRACE_MS ?? 10_000),
    log: env.TENURE_KIT_QUIET ? hide : show,
    ...(env.TENURE_NATS_INBOX_PREFIX && { inboxPrefix: env.TENURE_NATS_INBOX_PREFIX }),
  });

  w.handle('echo', (job) => job);

  w.handle<{ reports: number; every_ms: number }>('report', async (job, ctx) => {
    for (let i = 1; i <= job.reports; i++) {
      const [percent, message] = [(100 * i) / job.reports, `${i} of ${job.reports}`];
      await ctx.progress({ stage: 'working', percent, message, checkpoint: { i } });
      await sleep(job.every_ms, undefined, { signal: ctx.signal });
    }
    return { from: ctx.checkpoint };
  });

  w.handle('resume', async (_, ctx) => {
    if (ctx.checkpoint === null) {
      await ctx.progress({ checkpoint: { i: 3 } });
      await ctx.flush();
      await die();
    }
    return { from: ctx.checkpoint };
  });

  w.handle<{ after_ms?: number | null }>('retry', (job, ctx) => {
    if (ctx.attempt === 1) throw new Retry('not yet', { afterMs: job.after_ms ?? undefined });
    return { attempt: ctx.attempt };
  });

  w.handle('error', (_, ctx) => {
    if (ctx.attempt === 1) throw new Error('boom');
    return { attempt: ctx.attempt };
  });

  w.handle('fail', () => {
    throw new Permanent('no attempt could mend it');
  });

  w.handle<{ ms: number }>('snooze', async (job, ctx) => {
    if (ctx.checkpoint === null) {
      await ctx.progress({ checkpoint: { snoozed: true } });
      await ctx.flush();
      throw new Snooze(job.ms);
    }
    return { attempt: ctx.attempt };
  });

  w.handle('cancel', () => {
    throw new Cancel('not needed');
  });

  w.handle<{ ms: number; every_ms: number }>('sleep', async (job, ctx) => {
    const until = performance.now() + job.ms;
    for (let left = job.ms; left > 0; left = until - performance.now()) {
      await sleep(Math.min(left, job.every_ms || Infinity), undefined, { signal: ctx.signal });
      if (job.every_ms) await ctx.progress({ stage: 'sleeping' });
    }
    return 'slept';
  });

  w.handle('crash', async (_, ctx) => {
    if (ctx.attempt === 1) await die();
    return { attempt: ctx.attempt };
  });

  w.handle(
    'slow',
    async (_, ctx) => {
      if (ctx.attempt === 1) await sleep(60_000, undefined, { signal: ctx.signal });
      return { attempt: ctx.attempt };
    },
    { timeoutMs: 1_000 },
  );

  w.handle('once_key', (_, ctx: Context) => ({ key: ctx.key('x'), again: ctx.key('x') }));

  const steps: Handler<{ ms: number; parts: number[] }> = async (job, ctx) => {
    const one = await ctx.step('one', () => ({ token: ctx.token }));
    await ctx.sleep('nap', job.ms);
    const go = await ctx.event('go');
    const parts = await ctx.all(
      'parts',
      job.parts.map((n) => ({ kind: 'echo', payload: { n } })),
    );
    const late = (await ctx.eventWithin('never', 1)) ?? 'late';
    return { one, go, parts, late, attempt: ctx.attempt, token: ctx.token };
  };
  w.handle('steps', steps);

  w.handle('steps_crash', async (_, ctx) => {
    const one = await ctx.step('one', () => ({ token: ctx.token }));
    if (ctx.token === 1) await die();
    return { one, attempt: ctx.attempt, token: ctx.token };
  });

  w.handle('follow', async (_, ctx) => ({ outputs: await ctx.outputs(), failed: await ctx.failedBefore() }));

  w.handle<{ lines: { quantity: number; cents: number }[] }>('order', (job) => {
    const began = Math.floor((performance.timeOrigin + performance.now()) * 1_000);
    job.lines.reduce((sum, line) => sum + line.quantity * line.cents, 0);
    return env.TENURE_KIT_STAMP ? began : null;
  });

  return w;
}

await worker(process.argv[2] ?? 'q', Number(process.argv[3] ?? 8)).run();
