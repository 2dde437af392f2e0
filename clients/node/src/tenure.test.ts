/**
 * What the cases of the conformance kit do not reach: a gateway that answers oddly, late or never. It is played
 * here, over a real NATS.
 */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, suite, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { connect, type Msg, type NatsConnection } from '@nats-io/transport-node';

import { Cancelled, Client, Lost, Permanent, type Rules, Snooze, Suspended, TenureError, Worker } from './index.js';
import type { Handler } from './run.js';

interface Body {
  [name: string]: unknown;
  reports: Record<string, unknown>[];
  settles: Record<string, unknown>[];
  running: [string, number, string][];
}

/** Answers one request. `undefined`: never. */
type Answer = (body: Body) => unknown;

const ports = mkdtempSync(join(tmpdir(), 'tenure-node-'));
const MAX_PAYLOAD = 1_048_576;
let server: ChildProcess;
let url: string;
let nc: NatsConnection;
let queues = 0;

before(async () => {
  const own = join(import.meta.dirname, '../../../.tools/nats/bin/nats-server');
  const program = process.env.TENURE_NATS_SERVER ?? (existsSync(own) ? own : 'nats-server');
  server = spawn(program, ['-a', '127.0.0.1', '-p', '-1', '--ports_file_dir', ports], { stdio: 'ignore' });
  const file = join(ports, `nats-server_${server.pid}.ports`);
  while (!existsSync(file) || readFileSync(file, 'utf8') === '') await sleep(10);
  url = (JSON.parse(readFileSync(file, 'utf8')) as { nats: [string] }).nats[0];
  nc = await connect({ servers: url.replace('nats://', '') });
});

after(async () => {
  await nc.close();
  server.kill('SIGKILL');
  rmSync(ports, { recursive: true });
});

/** A gateway of a queue of its own. */
class Gateway {
  readonly queue = `q${++queues}`;
  readonly asked: [string, Body][] = [];
  readonly logged: string[] = [];
  readonly jobs: unknown[] = [];
  /** Requests to another address get no answer, as from a gateway that is frozen. */
  address = 'one';
  readonly answers: Record<string, Answer> = {
    hello: () => ({ beat_every_ms: 200, report_every_ms: 50, take_slots_max: 1_000 }),
    take: () => ({ jobs: this.jobs.splice(0), uncertain: false }),
    report: ({ reports }) => ({ results: reports.map(() => 'ok') }),
    settle: ({ settles }) => ({ results: settles.map(() => 'settled') }),
    beat: () => ({ now: `now ${this.asked.length}`, lost: [], cancel: [], returned: 0 }),
    goodbye: () => ({ gone: true }),
  };
  pong = (): unknown => ({ ok: { gateway: this.address } });
  confirmed = 0;

  constructor() {
    const confirmed = (): void => {
      this.confirmed++;
    };
    nc.subscribe(`confirm.${this.queue}`, { callback: confirmed });
    const callback = (_: unknown, message: Msg): void => {
      void this.#serve(message);
    };
    for (const side of ['w', 'p']) nc.subscribe(`tenure.jobs.${side}.${this.queue}.*`, { callback });
  }

  async #serve(message: Msg): Promise<void> {
    const [request = '', address] = (message.subject.split('.').at(-1) ?? '').split('@');
    if (address !== undefined && address !== this.address) return;
    if (request === 'ping') {
      message.respond(JSON.stringify(this.pong()));
      return;
    }
    const body: Body = message.json();
    this.asked.push([request, body]);
    const answer = await this.answers[request]?.(body);
    if (answer === undefined) return;
    const text = typeof answer === 'string' ? answer : JSON.stringify({ ok: answer });
    // An empty take waits a little, as a real one does.
    if (text.includes('"jobs":[]')) await sleep(20);
    const isHandedOver = request === 'take' && text.includes('"job"');
    message.respond(text, isHandedOver ? { reply: `confirm.${this.queue}` } : {});
  }

  /** The bodies of these requests. */
  of(request: string): Body[] {
    return this.asked.filter(([name]) => name === request).map(([, body]) => body);
  }

  settles(): Record<string, unknown>[] {
    return this.of('settle').flatMap((body) => body.settles);
  }

  reports(): Record<string, unknown>[] {
    return this.of('report').flatMap((body) => body.reports);
  }

  worker(handler: Handler, rules: Rules = {}): Worker {
    const log = (_: string, message: string): void => void this.logged.push(message);
    return new Worker({ url, queue: this.queue, graceMs: 0, log }).handle('known', handler, rules);
  }

  /** Serves until something is true. */
  async until(worker: Worker, isTrue: () => boolean): Promise<void> {
    const served = worker.serve();
    try {
      await until(isTrue, () => JSON.stringify([this.logged, this.asked]).slice(0, 2_000));
    } finally {
      worker.stop();
      await served;
    }
  }
}

async function until(isTrue: () => boolean, seen: () => string = () => ''): Promise<void> {
  for (let i = 0; !isTrue(); i++) {
    if (i > 1_000) assert.fail(`it does not become true: ${isTrue.toString()}\n${seen()}`);
    await sleep(10);
  }
}

function job(n: number, more: object = {}): unknown {
  const names = { job: `job-${n}`, kind: 'known', token: n, claim: `claim-${n}`, receipt: `receipt-${n}` };
  return { ...names, attempt: 1, max_attempts: 5, stale_after_ms: 30_000, after_reset: false, payload: n, ...more };
}

const again = JSON.stringify({ error: { code: 'unavailable', message: 'Postgres is away', retry: true } });
const refusal = { code: 'bad_request', message: 'that is wrong', retry: false };

void suite('a worker', { concurrency: true }, () => {
  void test('repeats a log at the end, and sends none in the place of a checkpoint', async () => {
    const gateway = new Gateway();
    const terms = gateway.answers.hello?.({} as Body) as object;
    gateway.answers.hello = () => ({ ...terms, keeps_logs: true });
    gateway.jobs.push(job(1), job(2));
    const checkpoint = 'x'.repeat(1_000_000);
    const worker = gateway.worker(async (payload, ctx) => {
      if (payload === 2) await ctx.progress({ checkpoint });
      ctx.log(payload === 1 ? 'once' : 'y'.repeat(60_000));
      while (payload === 1 && gateway.reports().length === 0) await sleep(10);
      if (payload === 2) throw new Permanent('as planned');
    });
    await gateway.until(worker, () => gateway.settles().length === 2);
    const reports = new Map(gateway.settles().map(({ job: of, report }) => [of, report]));
    assert.deepEqual(reports.get('job-1'), { log: { text: 'once\n', is_cut: false } });
    assert.deepEqual(reports.get('job-2'), { checkpoint });
  });

  void test('sends the end of what a job has logged, if the gateway keeps it', async () => {
    for (const isKept of [true, false]) {
      const gateway = new Gateway();
      const terms = gateway.answers.hello?.({} as Body) as object;
      gateway.answers.hello = () => ({ ...terms, keeps_logs: isKept });
      gateway.jobs.push(job(1), job(2));
      const worker = gateway.worker(async (payload, ctx) => {
        ctx.log(`of ${String(payload)}\r\n`);
        await ctx.flush();
        await sleep(200);
        for (let n = 0; payload === 2 && n < 20_000; n++) ctx.log(`ä ${n}`);
        ctx.log('last');
      });
      await gateway.until(worker, () => gateway.settles().length === 2);
      const logs = gateway.settles().map(({ job: of, report }) => {
        const { log } = (report ?? {}) as { log?: { text: string; is_cut: boolean } };
        return [of, log] as const;
      });
      const [one, two] = [new Map(logs).get('job-1'), new Map(logs).get('job-2')];
      if (!isKept) {
        assert.deepEqual([one, two, gateway.reports()], [undefined, undefined, []]);
        continue;
      }
      assert.deepEqual(one, { text: 'of 1\nlast\n', is_cut: false });
      assert.equal(two?.is_cut, true);
      assert.match(two.text, /^ä \d+\n/);
      assert.match(two.text, /\nä 19999\nlast\n$/);
      const bytes = Buffer.byteLength(two.text);
      assert.ok(bytes <= 65_536 && bytes > 65_500, `${bytes}`);
      const first = gateway.reports().map(({ job: of, log }) => [of, log]);
      assert.deepEqual(new Set(first.map(([of]) => of)), new Set(['job-1', 'job-2']));
      assert.deepEqual(first[0]?.[1], { text: `of ${first[0]?.[0] === 'job-1' ? 1 : 2}\n`, is_cut: false });
    }
  });

  void test('confirms its jobs, and survives answers that make no sense', async () => {
    const gateway = new Gateway();
    const odd = ['no JSON', '[]', { jobs: [null] }, { jobs: [job(1, { kind: 'unknown' })] }];
    const { take } = gateway.answers;
    gateway.answers.take = (body) => odd.shift() ?? take?.(body);
    const { beat } = gateway.answers;
    const oddBeats = ['[]', { now: 'x' }, JSON.stringify({ error: refusal })];
    gateway.answers.beat = (body) => oddBeats.shift() ?? beat?.(body);
    gateway.jobs.push(job(2));
    await gateway.until(
      gateway.worker((payload) => payload),
      () => gateway.settles().length > 0,
    );
    assert.deepEqual(gateway.settles(), [
      {
        outcome: 'complete',
        output: 2,
        ran_ms: gateway.settles()[0]?.ran_ms,
        job: 'job-2',
        token: 2,
        receipt: 'receipt-2',
        steps: [],
      },
    ]);
    assert.equal(gateway.confirmed, 2, 'both answers with a job');
    // What it might have been given unknowingly goes back before the next take.
    const names = gateway.asked.map(([name, { as_of }]) => (as_of ? 'as_of' : name));
    const second = names.indexOf('take', names.indexOf('take') + 1);
    assert.ok(names.slice(0, second).includes('as_of'), names.join());
    assert.equal(names.at(-1), 'goodbye');
  });

  void test('does not start jobs whose answer it has read too late', async () => {
    const gateway = new Gateway();
    const first = [job(1)];
    const second = [job(2)];
    gateway.answers.take = async () => {
      // The answer lies there, as in a process that is frozen.
      if (first.length > 0) await sleep(2_300);
      const jobs = first.length > 0 ? first.splice(0) : second.splice(0);
      return { jobs, uncertain: false, waited_ms: 0 };
    };
    const worker = gateway.worker((payload) => payload);
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.deepEqual(
      gateway.settles().map((settle) => settle.output),
      [2],
    );
    assert.ok(gateway.of('beat').some((beat) => beat.as_of));
  });

  void test('gets a large job in parts', async () => {
    const gateway = new Gateway();
    const text = JSON.stringify({ payload: 'ä😀'.repeat(10), checkpoint: { i: 3 } });
    gateway.answers.payload = ({ part }) => ({ text: text.slice(Number(part) * 20, (Number(part) + 1) * 20) });
    gateway.jobs.push(job(1, { parts: Math.ceil(text.length / 20), payload: undefined }));
    const worker = gateway.worker((payload, ctx) => [payload, ctx.checkpoint]);
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.deepEqual(gateway.settles()[0]?.output, ['ä😀'.repeat(10), { i: 3 }]);
  });

  void test('refuses what no message holds, and names the limit', async () => {
    const gateway = new Gateway();
    gateway.jobs.push(job(1), job(2), job(3), job(4));
    const large = 'x'.repeat(MAX_PAYLOAD);
    const worker = gateway.worker(async (payload, ctx) => {
      if (payload === 1) return large;
      if (payload === 2) await ctx.progress({ checkpoint: large });
      if (payload === 3) await ctx.progress({ checkpoint: large.slice(9_000) });
      if (payload === 4) throw new Error(`${large} \ud83d`);
      return large.slice(9_000);
    });
    await gateway.until(worker, () => gateway.settles().length === 4);
    const by = (token: number): Record<string, unknown> => gateway.settles().find((one) => one.token === token) ?? {};
    assert.match(String(by(1).error), /the output has 10\d{5} bytes, but a message of NATS holds at most 10\d{5}/);
    assert.equal(by(1).outcome, 'fail');
    assert.match(String(by(2).error), /the report has 10\d{5} bytes, but a message of NATS holds at most 10\d{5}/);
    assert.deepEqual([by(3).outcome, by(3).report], ['complete', undefined], 'the work is worth more than its report');
    assert.equal(by(4).outcome, 'retry');
    assert.equal(String(by(4).error).length, 10_000);
  });

  void test('splits reports that one message does not hold', async () => {
    const gateway = new Gateway();
    gateway.jobs.push(...[1, 2, 3].map((n) => job(n)));
    const worker = gateway.worker(async (_, ctx) => {
      await ctx.progress({ checkpoint: 'x'.repeat(MAX_PAYLOAD / 2) });
      await ctx.flush();
    });
    await gateway.until(worker, () => gateway.settles().length === 3);
    assert.equal(gateway.reports().length, 3);
    assert.equal(gateway.of('report').length, 3);
  });

  void test('repeats a report that was not written, and gives the last one to the settle', async () => {
    const gateway = new Gateway();
    let reports = 0;
    gateway.answers.report = () => (++reports === 2 ? { results: ['ok'] } : again);
    gateway.jobs.push(job(1));
    const worker = gateway.worker(async (_, ctx) => {
      await ctx.progress({ stage: 'a', checkpoint: 1 });
      await ctx.flush();
      await ctx.progress({ stage: 'b', percent: 50 });
      await until(() => reports > 2);
      await ctx.progress({ checkpoint: 2 });
      throw new Snooze(1_000.4);
    });
    await gateway.until(worker, () => gateway.settles().length > 0);
    const [first, second] = gateway.reports();
    assert.deepEqual(second, first);
    const { outcome, after_ms, report } = gateway.settles()[0] ?? {};
    assert.deepEqual([outcome, after_ms, report], ['snooze', 1_000, { stage: 'b', progress: 50, checkpoint: 2 }]);
  });

  void test('ends an attempt whose report is refused', async () => {
    const gateway = new Gateway();
    gateway.answers.report = () => ({ results: [{ error: refusal }] });
    gateway.jobs.push(job(1));
    const worker = gateway.worker(async (_, ctx) => {
      await ctx.progress({ percent: NaN, stage: 'half \ud83d' });
      await assert.rejects(ctx.flush(), /a report was refused: that is wrong/);
      await ctx.progress();
    });
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.equal(gateway.reports()[0]?.stage, 'half \ufffd');
    const { outcome, error } = gateway.settles()[0] ?? {};
    assert.deepEqual([outcome, error], ['retry', 'a report was refused: that is wrong']);
  });

  void test('ends an attempt whose handler throws what has no text, or never awaits a report', async () => {
    const gateway = new Gateway();
    gateway.answers.report = () => ({ results: ['cancel'] });
    gateway.jobs.push(job(1), job(2));
    let runs = 0;
    const worker = gateway.worker(async (_, ctx) => {
      if (++runs === 1) throw Object.assign(new Error('odd'), { toString: null, name: Symbol('odd') });
      while (!ctx.signal.aborted) {
        void ctx.progress({ percent: 1 });
        await sleep(5);
      }
      void ctx.progress();
      void ctx.flush();
      await sleep(20);
    });
    await gateway.until(worker, () => gateway.settles().length > 1);
    const ends = gateway.settles().map(({ outcome, error }) => [outcome, error]);
    assert.equal(gateway.settles()[0]?.outcome, 'retry');
    assert.match(JSON.stringify(ends[0]), /no text|odd/);
  });

  void test('ends an attempt otherwise whose end is refused', async () => {
    const gateway = new Gateway();
    const results: unknown[] = [refusal, { ...refusal, retry: true }, refusal, refusal];
    gateway.answers.settle = () => ({ results: [{ error: results.shift() }] });
    gateway.jobs.push(job(1));
    const worker = gateway.worker(async (_, ctx) => {
      await ctx.progress({ checkpoint: 1 });
      throw new Permanent('odd');
    });
    await gateway.until(worker, () => gateway.logged.includes('the attempt is refused'));
    const ends = gateway.settles().map(({ outcome, error, report }) => [outcome, error, report]);
    const text = 'a gateway refused the end of the attempt: that is wrong';
    assert.deepEqual(ends, [
      ['fail', 'odd', { checkpoint: 1 }],
      ['fail', 'odd', undefined],
      ['fail', 'odd', undefined],
      ['fail', text, undefined],
    ]);
  });

  void test('stops the older of two attempts of one job when one is lost', async () => {
    const gateway = new Gateway();
    const reasons: unknown[] = [];
    gateway.answers.beat = ({ running }) => ({ now: 'x', lost: running.length === 2 ? ['job-1'] : [], cancel: [] });
    gateway.jobs.push(job(1), job(2, { job: 'job-1' }));
    const worker = gateway.worker(async (payload, ctx) => {
      if (payload === 2) return until(() => gateway.of('beat').some(({ running }) => running.length === 1));
      await until(() => ctx.signal.aborted);
      reasons.push(ctx.signal.reason);
      return ctx.progress();
    });
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.deepEqual(gateway.settles()[0]?.token, 2);
    assert.ok(reasons[0] instanceof Lost);
    assert.equal(gateway.settles().length, 1);
  });

  void test('does not give back a job whose handler runs on', async () => {
    const gateway = new Gateway();
    gateway.jobs.push(job(1));
    let isStopping = false;
    let goesOn = true;
    const worker = gateway.worker(async (_, ctx) => {
      isStopping = true;
      worker.stop();
      await until(() => ctx.signal.aborted);
      assert.ok(ctx.signal.reason instanceof Cancelled);
      await sleep(700);
      goesOn = false;
      return ctx.progress();
    });
    await gateway.until(worker, () => isStopping);
    const { outcome, began } = gateway.settles()[0] ?? {};
    assert.deepEqual([goesOn, outcome, began], [false, 'release', true]);
    assert.ok(gateway.of('beat').some(({ draining }) => draining === true));
  });

  void test('gives back jobs that come after it was stopped', async () => {
    const gateway = new Gateway();
    const worker = gateway.worker(() => assert.fail('it began'));
    gateway.answers.take = () => {
      worker.stop();
      return { jobs: [job(1)], uncertain: false };
    };
    await gateway.until(worker, () => gateway.settles().length > 0);
    const { outcome, began } = gateway.settles()[0] ?? {};
    assert.deepEqual([outcome, began], ['release', false]);
  });

  void test('ends an attempt that takes too long', async () => {
    const gateway = new Gateway();
    gateway.jobs.push(job(1));
    const worker = gateway.worker((_, ctx) => sleep(60_000, undefined, { signal: ctx.signal }), { timeoutMs: 500 });
    await gateway.until(worker, () => gateway.settles().length > 0);
    const { outcome, error } = gateway.settles()[0] ?? {};
    assert.deepEqual([outcome, error], ['retry', 'it ran longer than the 500 ms that its kind allows']);
  });

  void test('reports for a silent attempt', async () => {
    const gateway = new Gateway();
    // A report is due after a sixth of it. The rest is for a busy machine: the attempt is cut off after 2,400 ms.
    gateway.jobs.push(job(1, { stale_after_ms: 3_000 }));
    const worker = gateway.worker(() => until(() => gateway.reports().length >= 3), { keepalive: true });
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.equal(gateway.settles()[0]?.outcome, 'complete');
  });

  void test('that is cut off gives its job back when it can', async () => {
    const gateway = new Gateway();
    let isAway = false;
    for (const [name, answer] of Object.entries(gateway.answers)) {
      gateway.answers[name] = (body) => (isAway ? again : answer(body));
    }
    gateway.jobs.push(job(1, { stale_after_ms: 500 }));
    const worker = gateway.worker(async (_, ctx) => {
      isAway = true;
      await until(() => ctx.signal.aborted);
      setTimeout(() => (isAway = false), 300);
      ctx.signal.throwIfAborted();
    });
    await gateway.until(worker, () => gateway.logged.includes('the attempt is settled'));
    assert.ok(gateway.logged.includes('the handler is asked to stop: cut off'));
    assert.equal(gateway.settles().at(-1)?.outcome, 'release');
  });

  void test('says hello again when its row is lost', async () => {
    const gateway = new Gateway();
    const hello = JSON.stringify({ error: { code: 'hello_first', message: 'no row', retry: true } });
    const { settle } = gateway.answers;
    gateway.answers.settle = (body) => (gateway.of('settle').length === 1 ? hello : settle?.(body));
    gateway.jobs.push(job(1));
    await gateway.until(
      gateway.worker(() => undefined),
      () => gateway.logged.includes('the attempt is settled'),
    );
    const names = gateway.asked.map(([name]) => name).filter((name) => name === 'hello' || name === 'settle');
    assert.deepEqual(names, ['hello', 'settle', 'hello', 'settle']);
  });

  void test('stops before any gateway or NATS has answered', async () => {
    const log = (): void => undefined;
    for (const to of [url, 'nats://127.0.0.1:9']) {
      const worker = new Worker({ url: to, queue: 'unserved', log }).handle('known', log);
      setTimeout(() => {
        worker.stop();
      }, 300);
      const began = performance.now();
      await worker.serve();
      assert.ok(performance.now() - began < 2_000);
    }
  });

  void test('whose hello is refused ends with the reason', async () => {
    const gateway = new Gateway();
    gateway.answers.hello = () => JSON.stringify({ error: refusal });
    await assert.rejects(gateway.worker(() => undefined).serve(), /bad_request: that is wrong/);
    await assert.rejects(new Worker({ url, queue: 'q' }).serve(), /no handler/);
  });

  void test('goes on with another gateway than one that is frozen', async () => {
    const gateway = new Gateway();
    const { hello } = gateway.answers;
    let frozenAt = 0;
    gateway.answers.hello = (body) => {
      gateway.address = 'two';
      gateway.jobs.push(job(1));
      frozenAt = performance.now();
      return hello?.(body);
    };
    const worker = gateway.worker(() => 'done');
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.ok(performance.now() - frozenAt < 4_000, `${performance.now() - frozenAt} ms`);
  });

  void test('asks any gateway where one knows no pings', async () => {
    const gateway = new Gateway();
    gateway.pong = () => ({ error: { code: 'unknown_request', message: 'no request', retry: false } });
    gateway.address = 'none';
    gateway.jobs.push(job(1));
    await gateway.until(
      gateway.worker(() => 'done'),
      () => gateway.settles().length > 0,
    );
  });
});

void suite('the steps of a job', { concurrency: true }, () => {
  void test('are done once, and the job is suspended between them', async () => {
    const gateway = new Gateway();
    gateway.answers.step = () => ({ recorded: true });
    gateway.answers.sleep = () => ({ left_ms: gateway.of('sleep').length === 1 ? 50 : 0 });
    gateway.answers.recorded = ({ name }) => (name === 'one' ? { recorded: true, result: null } : { recorded: false });
    gateway.answers.event = ({ name, within_ms }) => {
      if (name === 'go') return { came: true, payload: null };
      const late = gateway.of('event').length > 2;
      return within_ms === undefined ? { came: false, left_ms: null } : { came: false, late, left_ms: 7 };
    };
    gateway.answers.all = () => ({ ended: gateway.of('all').length > 1 });
    gateway.answers.outputs = ({ name, after }) => {
      const end = { job: `part-${String(after)}`, completed: name !== undefined || after === 9 };
      return after === 0 ? { ends: [{ ...end, output: 'a' }], next: 9 } : { ends: [end], next: null };
    };
    const jobs = [1, 2, 3, 4, 5].map((n) => job(n, { job: 'job' }));
    gateway.answers.settle = ({ settles }) => {
      gateway.jobs.push(...jobs.splice(0, 1));
      return { results: settles.map(() => 'settled') };
    };
    gateway.jobs.push(...jobs.splice(0, 1));
    let runs = 0;
    const worker = gateway.worker(async (_, ctx) => {
      const one = await ctx.step<unknown>('one', () => {
        runs++;
      });
      const two = await ctx.step('two', () => Promise.resolve({ at: new Date(0), zero: -0 }));
      await ctx.sleep('nap', 50.4);
      const waits = [await ctx.event('go'), await ctx.eventWithin('never', 7)];
      const parts = await ctx.all('parts', [{ kind: 'k', payload: undefined, maxAttempts: 2, priority: -1 }]);
      const none = await ctx.all('none', []);
      if (ctx.token < 5) await ctx.event('last');
      return [one, two, waits, parts, none, await ctx.outputs(), await ctx.failedBefore()];
    });
    await gateway.until(worker, () => gateway.settles().length === 5);
    const ends = gateway.settles().map(({ outcome, awaits, left_ms, error }) => [outcome, awaits, left_ms, error]);
    assert.deepEqual(ends, [
      ['suspend', undefined, 50, undefined],
      ['suspend', 'never', 7, undefined],
      ['suspend', 'parts', undefined, undefined],
      ['suspend', 'last', undefined, undefined],
      ['complete', undefined, undefined, undefined],
    ]);
    const two = { at: '1970-01-01T00:00:00.000Z', zero: 0 };
    const output = [null, two, [null, null], ['a', null], [], [null], ['part-0']];
    assert.deepEqual(gateway.settles()[4]?.output, output);
    assert.deepEqual(gateway.settles()[0]?.steps, ['one', 'two', 'nap']);
    assert.deepEqual(gateway.settles()[4]?.steps, ['one', 'two', 'nap', 'go', 'never', 'parts', 'none']);
    assert.equal(runs, 1);
    const named = { v: 1, worker: worker.worker, receipt: 'receipt-1' };
    const [first, second] = gateway.of('step');
    assert.deepEqual(first, { ...named, name: 'one', took_ms: first?.took_ms, result: null });
    assert.deepEqual(second, { ...named, name: 'two', took_ms: second?.took_ms, result: two });
    assert.ok(!gateway.of('recorded').some(({ receipt }) => receipt === 'receipt-1'), 'nothing is recorded yet');
    assert.deepEqual(gateway.of('sleep')[0], { ...named, name: 'nap', lasts_ms: 50 });
    const asked = [{ payload: null, kind: 'k', max_attempts: 2, priority: -1 }];
    assert.deepEqual(gateway.of('all')[0], { ...named, receipt: 'receipt-3', name: 'parts', jobs: asked });
    assert.ok(!gateway.logged.some((line) => line.includes('threw')), 'a wait is no failure');
  });

  void test('fail the job if they cannot be', async () => {
    const gateway = new Gateway();
    const { hello } = gateway.answers;
    gateway.answers.hello = (body) => ({ ...(hello?.(body) as object), checkpoint_bytes_max: 100 });
    gateway.answers.step = () => ({ recorded: true });
    gateway.answers.event = () => ({ came: false, late: true });
    gateway.answers.sleep = () =>
      JSON.stringify({ error: { code: 'refused', message: 'the name is taken', retry: false } });
    gateway.answers.all = () => ({ ended: true });
    gateway.answers.outputs = () => ({
      ends: [true, false, false].map((completed, n) => ({ job: `part-${n}`, completed, output: n })),
    });
    gateway.jobs.push(job(1));
    const part = { kind: 'k', payload: 1 };
    const worker = gateway.worker(async (_, ctx) => {
      const fails = async (work: () => Promise<unknown>, message: RegExp): Promise<void> => {
        await assert.rejects(work, (error: Error) => error instanceof Permanent && message.test(error.message));
      };
      const boom = (): never => {
        throw new Error('boom');
      };
      await assert.rejects(ctx.step('a', boom), /boom/);
      await fails(
        () => ctx.step('a', () => 'x'.repeat(99)),
        /"a" has 101 bytes, but at most 100 .*_BYTES_MAX.*elsewhere/,
      );
      assert.equal(await ctx.step('a', () => 1), 1);
      await fails(() => ctx.step('a', boom), /step "a" was called twice/);
      for (const name of ['', 'a\n', 'half \ud83d', 'ä'.repeat(257)])
        await fails(() => ctx.step(name, boom), /1 to 512 bytes/);
      await fails(() => ctx.sleep('b', NaN), /step "b" is NaN/);
      await fails(() => ctx.eventWithin('c', NaN), /step "c" is NaN/);
      await fails(() => ctx.sleep('d', -1), /^the name is taken$/);
      await fails(() => ctx.event('e'), /has stopped waiting for event "e".*eventWithin/);
      assert.equal(await ctx.eventWithin('f', Infinity), undefined);
      await fails(
        () => ctx.all('g', [part, part, part]),
        /2 of 3 jobs of step "g" .* job part-1: redrive them, and then/,
      );
      await fails(() => ctx.all('h', Array(1_001).fill(part)), /1001 jobs, but at most 1000/);
      const large = { ...part, payload: 'x'.repeat(MAX_PAYLOAD) };
      await fails(() => ctx.all('i', [large]), /"i" have 10\d{5} bytes, but at most 10\d{5} .*max_payload/);
      throw new Permanent('seen');
    });
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.equal(gateway.settles()[0]?.error, 'seen');
    assert.deepEqual([gateway.of('sleep')[0]?.lasts_ms, gateway.of('sleep').length], [0, 1]);
  });

  void test('are repeated until they are recorded, which is a sign of life', async () => {
    const gateway = new Gateway();
    const hello = JSON.stringify({ error: { code: 'hello_first', message: 'no row', retry: true } });
    const answers = [again, hello, { recorded: true }];
    gateway.answers.step = () => (gateway.of('step').length > 3 ? { recorded: true } : answers.shift());
    gateway.answers.report = () => again;
    gateway.jobs.push(job(1, { stale_after_ms: 2_000 }));
    let tookMs = Infinity;
    const warnings: Error[] = [];
    process.on('warning', (warning) => warnings.push(warning));
    const worker = gateway.worker(async (_, ctx) => {
      await sleep(1_100);
      await ctx.step('one', () => 1);
      const beganAt = performance.now();
      await ctx.progress();
      tookMs = performance.now() - beganAt;
      await Promise.all(Array.from({ length: 20 }, (_, n) => ctx.step(`${n}`, () => sleep(5))));
    });
    await gateway.until(worker, () => gateway.settles().length > 0);
    const [first, ...others] = gateway.of('step');
    assert.deepEqual(others.slice(0, 2), [first, first]);
    assert.equal(gateway.settles()[0]?.outcome, 'complete');
    assert.ok(tookMs < 500, `${tookMs}`);
    assert.deepEqual(warnings, [], 'many steps at once are no leak of listeners');
  });

  void test('end when the job is lost, or its handler is asked to stop', async () => {
    const gateway = new Gateway();
    const ends: unknown[] = [];
    gateway.answers.step = () => ({ lost: true });
    gateway.jobs.push(job(1), job(2));
    const worker = gateway.worker(async (payload, ctx) => {
      try {
        if (payload === 2) await until(() => gateway.logged.includes('the attempt is lost'));
        await (payload === 1 ? ctx.step('a', () => 1) : ctx.event('never'));
      } catch (error) {
        ends.push(error, ctx.signal.reason);
        throw error;
      }
    });
    gateway.answers.event = () => {
      worker.stop();
    };
    await gateway.until(worker, () => gateway.settles().length > 0);
    assert.ok(ends[0] instanceof Lost && ends[1] instanceof Lost, String(ends));
    assert.ok(ends[2] instanceof Cancelled && ends[2] === ends[3]);
    assert.ok(gateway.logged.includes('the attempt is lost'));
    const settles = gateway.settles().map(({ token, outcome }) => [token, outcome]);
    assert.deepEqual(settles, [[2, 'release']]);
  });

  void test('suspend the job also while the worker stops, and are not named if there is no room', async () => {
    const gateway = new Gateway();
    gateway.answers.event = () => ({ came: true });
    gateway.jobs.push(job(1), job(2));
    const worker = gateway.worker(async (payload, ctx) => {
      if (payload === 1) {
        await Promise.all(Array.from({ length: 100 }, (_, n) => ctx.event(`${n} `.padEnd(500, 'x'))));
        return 'x'.repeat(MAX_PAYLOAD - 20_000);
      }
      await until(() => gateway.settles().length > 0);
      worker.stop();
      await until(() => ctx.signal.aborted);
      throw new Suspended('a', undefined);
    });
    await gateway.until(worker, () => gateway.settles().length > 1);
    const ends = gateway.settles().map(({ outcome, steps, awaits }) => [outcome, steps, awaits]);
    assert.deepEqual(ends, [
      ['complete', undefined, undefined],
      ['suspend', undefined, 'a'],
    ]);
  });
});

void suite('a producer', { concurrency: true }, () => {
  const told = { job: 'a', kind: 'known', status: 'queued', attempt: 0, max_attempts: 5, stage: null, progress: null };
  const seen = { ...told, message: null, output: null, output_omitted: true, last_error: 'e', ended: false };
  const log = (): void => undefined;

  void test('repeats an enqueue with the same key', async () => {
    const gateway = new Gateway();
    const answers = [again, again, { job: 'a', created: true }];
    gateway.answers.enqueue = () => answers.shift();
    const client = await Client.connect({ url, log });
    const runAt = new Date(0);
    const enqueued = await client.enqueue(gateway.queue, 'known', { doc: 7 }, { delayMs: 1.2, runAt, priority: -1 });
    assert.deepEqual(enqueued, { job: 'a', created: true });
    const asked = gateway.of('enqueue');
    assert.equal(asked.length, 3);
    assert.deepEqual(asked[0], asked[2]);
    const { key, ...rest } = asked[0] ?? ({} as Body);
    assert.match(String(key), /^[0-9a-f-]{36}$/);
    const times = { delay_ms: 1, run_at: '1970-01-01T00:00:00.000Z' };
    assert.deepEqual(rest, { v: 1, kind: 'known', payload: { doc: 7 }, priority: -1, ...times });
    await client.close();
  });

  void test('sees each change of a job until its end', async () => {
    const gateway = new Gateway();
    const waits = [seen, { ...seen, stage: 'b' }, { ...seen, stage: 'b' }, { ...seen, stage: 'b', ended: true }];
    gateway.answers.job = () => seen;
    gateway.answers.wait = () => waits.shift();
    gateway.answers.cancel = () => ({ cancelled: false, asked: true });
    const client = await Client.connect({ url, log });
    const stages = [];
    for await (const { stage, ended } of client.watch(gateway.queue, 'a', { everyMs: 0 })) stages.push([stage, ended]);
    assert.deepEqual(stages, [
      [null, false],
      ['b', false],
      ['b', true],
    ]);
    waits.push(seen, { ...seen, ended: true });
    gateway.asked.length = 0;
    const { maxAttempts, lastError, outputOmitted, ended } = await client.wait(gateway.queue, 'a');
    assert.deepEqual([maxAttempts, lastError, outputOmitted, ended], [5, 'e', true, true]);
    assert.deepEqual(
      gateway.of('wait').map(({ wait_ms }) => wait_ms),
      [20_000, 20_000],
    );
    waits.push(seen);
    assert.equal((await client.wait(gateway.queue, 'a', { timeoutMs: 0 })).ended, false);
    assert.equal(await client.cancel(gateway.queue, 'a'), false);
    gateway.answers.signal = () => ({ answer: 'delivered' });
    assert.equal(await client.signal(gateway.queue, 'a', 'approved', { by: 'ann' }), 'delivered');
    assert.deepEqual(gateway.of('signal'), [{ v: 1, job: 'a', name: 'approved', payload: { by: 'ann' } }]);
    await client.close();
  });

  void test('ends a request that is too large, refused, given up, or after the end', async () => {
    const gateway = new Gateway();
    gateway.answers.enqueue = () => again;
    gateway.answers.job = () => JSON.stringify({ error: { ...refusal, code: 'no_such_job' } });
    const client = await Client.connect({ url, log });
    const large = client.enqueue(gateway.queue, 'known', 'x'.repeat(MAX_PAYLOAD));
    await assert.rejects(large, /the request has 10\d+ bytes, but a message of NATS holds at most 1048576/);
    await assert.rejects(client.job(gateway.queue, 'a'), { name: 'ProtocolError', code: 'no_such_job' });
    const began = performance.now();
    const never = client.enqueue(gateway.queue, 'known', 7, { signal: AbortSignal.timeout(300) });
    await assert.rejects(never, { name: 'TimeoutError' });
    assert.ok(performance.now() - began < 1_000);
    const asked = gateway.asked.length;
    await assert.rejects(client.enqueue(gateway.queue, 'known', 7, { signal: AbortSignal.abort() }));
    await client.close();
    await assert.rejects(client.job(gateway.queue, 'a'), TenureError);
    assert.equal(gateway.asked.length, asked);
    await assert.rejects(Client.connect({ url: 'nats://127.0.0.1:9', log }), TenureError);
  });
});
