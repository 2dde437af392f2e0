/** A worker: takes jobs, runs their handlers, reports and settles. */

import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';

import type { Msg } from '@nats-io/transport-node';

import { Cancel, Lost, Permanent, ProtocolError, Retry, Snooze, TenureError, suspension } from './errors.js';
import { Tail } from './log.js';
import {
  Bell,
  Context,
  type Fields,
  fieldsOf,
  type Handler,
  type Job,
  type Kind,
  type Limits,
  Run,
  type StepAnswers,
  textOf,
  whole,
  type Why,
} from './run.js';
import {
  ANSWERED_WITHIN_MS,
  type Connection,
  type Log,
  Pauses,
  type Refusal,
  repeat,
  Wire,
  writeLine,
} from './wire.js';

const VERSION = '0.2.0';
const WAIT_MS = 5_000;
const UNCERTAIN_FOR_MS = 30_000;
/** How long handlers have to end after they were asked to. */
const STOPPED_WITHIN_MS = 15_000;
const ENTRIES_MAX = 1_000;
/** A request with few reports is answered soon, and others are written beside it. */
const REPORTS_MAX = 100;
const OVERHEAD = 4_096;
const ERROR_MAX = 10_000;
const REFUSED = 'a gateway refused the end of the attempt';
/** The longest time of a timer of Node. */
const TIMER_MAX = 2 ** 31 - 1;

export interface WorkerOptions extends Connection {
  queue: string;
  /** How many jobs run at once. */
  slots?: number;
  /** How long handlers may go on after a stop. */
  graceMs?: number;
}

export interface Rules {
  /** A job that has reported nothing for this long counts as lost. */
  staleAfterMs?: number;
  /** `dead_letter`: a job whose worker is lost in the middle must not run again. */
  onCrash?: 'retry' | 'dead_letter';
  /** `false`: a completed job of the kind leaves no row. */
  history?: boolean;
  /** The time after which an attempt is asked to stop, and is tried again. */
  timeoutMs?: number;
  /**
   * The worker reports for a handler that is silent by its nature. Set `timeoutMs`, too, or one that hangs looks alive
   * for ever.
   */
  keepalive?: boolean;
}

/** The answers of gateways. */
interface Answers extends StepAnswers {
  hello: {
    beat_every_ms: number;
    report_every_ms: number;
    take_slots_max: number;
    checkpoint_bytes_max: number;
    keeps_logs: boolean;
  };
  take: { jobs: Job[]; uncertain: boolean };
  payload: { text: string; lost?: boolean };
  report: { results: unknown[] };
  settle: { results: unknown[] };
  beat: { now: string; lost: string[]; cancel: string[]; keeps_logs?: boolean };
  goodbye: { gone: boolean };
}

/** An entry of a report or a settle. */
interface Entry {
  run: Run;
  fields: Fields;
  text: string;
  bytes: number;
}

/** What became of an entry: a word, or why it was refused. */
type Result = string | Refusal;

/** Runs the jobs of one queue, `slots` of them at once. */
export class Worker {
  readonly worker: string;
  readonly queue: string;
  readonly slots: number;
  readonly #options: WorkerOptions;
  readonly #log: Log;
  readonly #kinds = new Map<string, Kind>();
  readonly #runs = new Map<string, Run>();
  /** The latest attempt of each job. */
  readonly #latest = new Map<string, Run>();
  readonly #settles: Entry[] = [];
  readonly #draining = new AbortController();
  readonly #ended = new AbortController();
  readonly #freed = new Bell();
  readonly #look = new Bell();
  readonly #toSettle = new Bell();
  #connected: Wire | undefined;
  #terms: Answers['hello'] = {
    beat_every_ms: 5_000,
    report_every_ms: 1_000,
    take_slots_max: ENTRIES_MAX,
    checkpoint_bytes_max: Infinity,
    keeps_logs: false,
  };
  #uncertainUntil = -Infinity;
  #okAt = performance.now();
  #wokeAt = -Infinity;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#log = options.log ?? writeLine;
    this.queue = options.queue;
    this.slots = options.slots ?? 8;
    const host = hostname()
      .replace(/[^A-Za-z0-9_-]/g, '_')
      .slice(0, 60);
    this.worker = `${host}-${process.pid}-${randomBytes(4).toString('hex')}`;
  }

  /** Sets the handler of a kind; `*` is every other kind. The caller says what its payloads are. */
  handle<Payload = unknown>(kind: string, handler: Handler<Payload>, rules: Rules = {}): this {
    const { staleAfterMs, onCrash, history, timeoutMs, keepalive = false } = rules;
    const told = { stale_after_ms: staleAfterMs, on_crash: onCrash, history };
    this.#kinds.set(kind, { handler: handler as Handler, rules: told, timeoutMs, keepalive });
    return this;
  }

  /** Serves until SIGTERM or SIGINT, then stops in order. Ends the process if a handler does not stop. */
  async run(): Promise<void> {
    const stop = (): void => {
      this.stop();
    };
    process.on('SIGTERM', stop).on('SIGINT', stop);
    try {
      await this.serve();
    } catch (error) {
      if (this.#running().length === 0) throw error;
      // Others run these jobs as soon as this worker is gone. So its handlers must not go on.
      this.#log('error', `the process ends: ${String(error)}`, {});
      process.exit(1);
    } finally {
      process.off('SIGTERM', stop).off('SIGINT', stop);
    }
  }

  /** Takes no more jobs. `serve` returns when those that run have ended, or were given back after the grace. */
  stop(): void {
    this.#draining.abort();
    this.#freed.ring();
  }

  /**
   * Serves until `stop` is called, or an operator drains the worker. Throws if a handler runs on though it was asked to
   * stop: end the process then, because others will run its job.
   */
  async serve(): Promise<void> {
    if (this.#kinds.size === 0) throw new TenureError('the worker has no handler: add one with worker.handle');
    const stop = this.#draining.signal;
    try {
      await repeat(() => this.#connect(), stop, this.#log);
      await repeat(() => this.#hello(), stop, this.#log);
    } catch (error) {
      await this.#connected?.nc.close();
      if (stop.aborted) return;
      throw error;
    }
    const { nc } = this.#wire;
    const closed = nc.closed().then((error) => {
      if (!this.#ended.signal.aborted) throw new TenureError('the connection to NATS is closed', { cause: error });
    });
    const loops = [
      this.#loop(() => this.#reports()),
      this.#loop(() => this.#beats()),
      this.#loop(() => this.#settleSome()),
    ];
    try {
      await Promise.race([this.#takes().then(() => this.#end()), closed]);
    } finally {
      this.#endLoops();
      this.stop();
      for (const run of this.#running()) this.#stop(run, 'cut off');
      await nc.close();
      await Promise.all(loops);
    }
    const left = this.#running().length;
    if (left > 0) throw new TenureError(`${left} handlers run on though they were asked to stop`);
  }

  get #wire(): Wire {
    if (!this.#connected) throw new TenureError('the worker is not connected');
    return this.#connected;
  }

  async #connect(): Promise<void> {
    const wire = await Wire.connect(this.#options);
    // The worker may have been stopped meanwhile.
    if (this.#draining.signal.aborted) return wire.nc.close();
    this.#connected = wire;
    const callback = (error: Error | null, message: Msg): void => {
      if (!error) this.#told(message);
    };
    wire.nc.subscribe(`${wire.prefix}.w.${this.queue}.to.${this.worker}`, { callback });
  }

  async #hello(): Promise<void> {
    const about = { hostname: hostname(), pid: process.pid, language: 'node', version: VERSION };
    const hello = { v: 1, worker: this.worker, slots: this.slots, kinds: this.#rules(), ...about };
    const answer = await this.#wire.once(`w.${this.queue}.hello`, JSON.stringify(hello));
    this.#terms = { ...this.#terms, ...(answer as Answers['hello']) };
    this.#log('info', 'the worker is ready', { event: 'ready', worker: this.worker });
  }

  #rules(): Record<string, unknown> {
    return Object.fromEntries([...this.#kinds].map(([name, kind]) => [name, kind.rules]));
  }

  /** Sends a request once. */
  async #once<R extends keyof Answers>(request: R, fields: Fields, withinMs?: number): Promise<Answers[R]> {
    const body = textOf({ v: '1', worker: JSON.stringify(this.worker), ...fields });
    const send = (): Promise<unknown> => this.#wire.once(`w.${this.queue}.${request}`, body, withinMs);
    const answer = await send().catch(async (error: unknown) => {
      // Not after the goodbye: a new row would be of a worker that is gone.
      if (!(error instanceof ProtocolError && error.code === 'hello_first') || this.#ended.signal.aborted) throw error;
      await this.#hello();
      return send();
    });
    this.#okAt = performance.now();
    return answer as Answers[R];
  }

  /** Repeats a step until the worker has ended. No answer, however odd, ends it earlier. */
  async #loop(step: () => Promise<void>): Promise<void> {
    const isOver = (): boolean => this.#ended.signal.aborted;
    let pauses = new Pauses();
    while (!isOver()) {
      try {
        await step();
        pauses = new Pauses();
      } catch (error) {
        if (isOver()) return;
        this.#log('warn', `a request failed; the worker goes on: ${String(error)}`, {});
        await pauses.next(this.#ended.signal).catch(() => undefined);
      }
    }
  }

  async #takes(): Promise<void> {
    const stop = this.#draining.signal;
    let pauses = new Pauses();
    while (!stop.aborted) {
      const free = Math.min(this.slots - this.#runs.size, this.#terms.take_slots_max);
      if (free <= 0) {
        await this.#freed.next();
        continue;
      }
      try {
        if (performance.now() < this.#uncertainUntil) {
          const { now } = await repeat(() => this.#beat(), stop, this.#log);
          await repeat(() => this.#beat(now), stop, this.#log);
        }
        const asked = fieldsOf({ slots: free, wait_ms: WAIT_MS, kinds: this.#rules() });
        const taken = await this.#once('take', asked, WAIT_MS + ANSWERED_WITHIN_MS);
        if (taken.uncertain) this.#uncertainUntil = performance.now() + UNCERTAIN_FOR_MS;
        for (const job of taken.jobs) this.#start(job);
        pauses = new Pauses();
      } catch (error) {
        if (error === stop.reason) return;
        this.#log('warn', `no jobs were taken; the worker tries again: ${String(error)}`, {});
        this.#uncertainUntil = performance.now() + UNCERTAIN_FOR_MS;
        await pauses.next(stop).catch(() => undefined);
      }
    }
  }

  /** Starts a job. One that cannot start is given back by the next beats, as all that the worker does not name. */
  #start(job: Job): void {
    const kind = this.#kinds.get(job.kind) ?? this.#kinds.get('*');
    if (!kind) throw new TenureError(`the worker has no handler of ${job.kind}`);
    const run = new Run(job, kind, new Tail(this.#terms.keeps_logs));
    // An attempt of the same job that this worker lost, and of which it has not heard yet.
    const older = this.#latest.get(job.job);
    if (older) {
      this.#stop(older, 'lost');
      // Its settle may still be repeated: a beat must not name it beside this one.
      older.why = 'lost';
    }
    this.#latest.set(job.job, run);
    this.#runs.set(job.claim, run);
    if (this.#draining.signal.aborted) this.#settle(run, fieldsOf({ outcome: 'release', began: false }));
    else {
      void this.#attempt(run).catch((error: unknown) => {
        this.#settle(run, failed(error));
      });
    }
  }

  async #attempt(run: Run): Promise<void> {
    const { handler, timeoutMs } = run.kind;
    const beganAt = performance.now();
    let timer;
    let end: Fields;
    try {
      if (run.job.parts !== undefined) await this.#fetch(run);
      run.began = true;
      this.#tell('debug', run, 'the attempt begins', 'began');
      if (timeoutMs !== undefined) {
        timer = setTimeout(this.#stop.bind(this, run, 'timeout'), Math.min(timeoutMs, TIMER_MAX));
      }
      const limits = (): Limits => this.#limits;
      const ctx = new Context(run, this.queue, limits, (request, fields) => this.#ask(run, request, fields));
      const output = await handler(run.job.payload, ctx);
      end = fieldsOf({ outcome: 'complete', output });
    } catch (error) {
      end = this.#endOf(run, error);
    }
    clearTimeout(timer);
    // Its report must not come after its end.
    while (run.sending) await run.changed.next();
    if (run.why === 'lost') this.#forget(run, 'lost');
    else this.#settle(run, { ...end, ran_ms: String(Math.round(performance.now() - beganAt)) });
  }

  /** How an attempt ends whose handler threw. */
  #endOf(run: Run, error: unknown): Fields {
    try {
      return fieldsOf(this.#said(run, error));
    } catch {
      return failed('the handler threw an error that has no text');
    }
  }

  #said(run: Run, error: unknown): Record<string, unknown> {
    if (error instanceof Lost) run.why = 'lost';
    if (run.why === 'cancelled') return { outcome: 'cancel', error: 'the job was cancelled' };
    // It has come to a wait: there is nothing to give back, or to try again.
    const wait = suspension(error);
    if (wait) return { outcome: 'suspend', awaits: wait.awaits, left_ms: wait.leftMs };
    if (run.why === 'shutdown' || run.why === 'cut off') return { outcome: 'release', began: run.began };
    if (run.why === 'timeout') {
      return { outcome: 'retry', error: `it ran longer than the ${run.kind.timeoutMs} ms that its kind allows` };
    }
    const thrown = error instanceof Error ? error : new Error(inspect(error));
    const said = error instanceof TenureError ? error.message : String(thrown);
    const text = said.slice(0, ERROR_MAX).toWellFormed();
    if (error instanceof Retry) return { outcome: 'retry', error: text, after_ms: whole(error.afterMs) };
    if (error instanceof Snooze) return { outcome: 'snooze', after_ms: whole(error.ms) };
    if (error instanceof Permanent) return { outcome: 'fail', error: text };
    if (error instanceof Cancel) return { outcome: 'cancel', error: text };
    if (!run.why) this.#tell('warn', run, 'the handler threw', 'threw', { error: thrown.stack });
    return { outcome: 'retry', error: text };
  }

  /** Gets the parts of a large job. */
  async #fetch(run: Run): Promise<void> {
    let text = '';
    for (let part = 0; part < (run.job.parts ?? 0); part++) {
      const asked = fieldsOf({ receipt: run.job.receipt, part });
      const answer = await repeat(() => this.#once('payload', asked), run.signal, this.#log);
      if (answer.lost) throw new Lost();
      text += answer.text;
    }
    Object.assign(run.job, JSON.parse(text));
  }

  /** Asks about a step of the job, until a gateway answers, or the handler is asked to stop. */
  async #ask<R extends keyof StepAnswers>(run: Run, request: R, fields: Fields): Promise<StepAnswers[R]> {
    const asked = { ...fields, ...fieldsOf({ receipt: run.job.receipt }) };
    const send = async (): Promise<Answers[R]> => {
      const sentAt = performance.now();
      const answer = await this.#once(request, asked);
      if (!answer.lost && request !== 'recorded' && request !== 'outputs') run.written(sentAt);
      return answer;
    };
    // What a step has done is done, also if its handler is to stop.
    const isLast = request === 'step' && run.why !== undefined && run.why !== 'lost';
    const asking = isLast ? send() : repeat(send, run.signal, this.#log);
    const answer = await asking.catch((error: unknown) => {
      const isRefused = error instanceof ProtocolError && error.code === 'refused';
      throw isRefused ? new Permanent(error.message.slice(`${error.code}: `.length)) : error;
    });
    if (!answer.lost) return answer;
    this.#stop(run, 'lost');
    throw new Lost();
  }

  #running(): Run[] {
    return [...this.#runs.values()].filter((run) => run.isRunning);
  }

  /** Asks a handler to stop. The first reason stays, but for the loss of the job. */
  #stop(run: Run, why: Why): void {
    if (!run.isRunning || run.why === 'lost' || (run.why && why !== 'lost')) return;
    run.stop(why);
    this.#tell('warn', run, `the handler is asked to stop: ${why}`, 'stopped', { why });
  }

  #forget(run: Run, event: string, more: Record<string, unknown> = {}): void {
    run.isRunning = false;
    this.#runs.delete(run.job.claim);
    if (this.#latest.get(run.job.job) === run) this.#latest.delete(run.job.job);
    this.#freed.ring();
    this.#tell(event === 'settled' ? 'debug' : 'warn', run, `the attempt is ${event}`, event, more);
  }

  #tell(level: Parameters<Log>[0], run: Run, message: string, event: string, more: Record<string, unknown> = {}): void {
    const { job, kind, attempt, token } = run.job;
    this.#log(level, message, { event, job, kind, attempt, token, ...more });
  }

  get #limits(): Limits {
    return { checkpoint: this.#terms.checkpoint_bytes_max, entry: this.#wire.maxPayload - OVERHEAD };
  }

  #settle(run: Run, end: Fields): void {
    run.isRunning = false;
    const most = this.#limits.entry;
    const reported = run.pending ? { ...end, report: textOf(run.pending) } : end;
    // A job that completes without the steps that were recorded is told of.
    const tells = run.steps.size > 0 || (run.job.token > 1 && end.outcome === '"complete"');
    const called = tells ? { ...reported, steps: JSON.stringify([...run.steps]) } : reported;
    const log = run.tail.whole();
    let entry = entryOf(run, log === undefined ? called : { ...called, report: textOf({ ...run.pending, log }) });
    // The work is worth more than its last report, that more than the names of its steps, these more than the log.
    if (entry.bytes > most) entry = entryOf(run, called);
    if (entry.bytes > most) entry = entryOf(run, reported);
    if (entry.bytes > most) entry = entryOf(run, end);
    if (entry.bytes > most) {
      const error = `the output has ${entry.bytes} bytes, but a message of NATS holds at most ${most}`;
      entry = entryOf(run, fieldsOf({ outcome: 'fail', error }));
    }
    this.#settles.push(entry);
    this.#toSettle.ring();
  }

  /** Sends the settles that wait, together, until they are answered. */
  async #settleSome(): Promise<void> {
    if (this.#settles.length === 0) await this.#toSettle.next();
    if (this.#settles.length === 0) return;
    const sent = this.#fitting(this.#settles, ENTRIES_MAX);
    const results = await this.#send('settle', sent);
    this.#settles.splice(0, sent.length);
    sent.forEach((entry, place) => {
      this.#settled(entry, results[place]);
    });
    if (results.some((result) => result === undefined)) await sleep(200, undefined, { signal: this.#ended.signal });
  }

  /** `result`: absent, if the settle is to be repeated. */
  #settled({ run, fields }: Entry, result: Result | undefined): void {
    const { report, ...end } = fields;
    if (typeof result === 'string') this.#forget(run, result);
    else if (!result) this.#settles.push(entryOf(run, fields));
    else if (report !== undefined) {
      // The report may be what is wrong; the log may say why.
      const log = run.isUnreported ? undefined : run.tail.whole();
      run.isUnreported = true;
      this.#settles.push(entryOf(run, log === undefined ? end : { ...end, report: textOf({ log }) }));
    } else if (!fields.error?.startsWith(`"${REFUSED}`)) {
      const error = `${REFUSED}: ${result.message}`;
      this.#settles.push(entryOf(run, fieldsOf({ outcome: 'fail', error })));
    } else this.#forget(run, 'refused', { error: result.message });
  }

  /** Those entries, from the first on, that fit into one request. */
  #fitting(entries: Entry[], most: number): Entry[] {
    let room = this.#limits.entry;
    const past = entries.findIndex((entry, place) => {
      room -= entry.bytes + 1;
      return place === most || (place > 0 && room < 0);
    });
    return entries.slice(0, past < 0 ? entries.length : past);
  }

  /** Sends entries in one request. The result of one that is to be repeated is absent. */
  async #send(request: 'report' | 'settle', entries: Entry[]): Promise<(Result | undefined)[]> {
    const list = `[${entries.map((entry) => entry.text).join()}]`;
    const { results } = await this.#once(request, { [`${request}s`]: list });
    return entries.map((_, place) => {
      const result = results[place] as string | { error: Refusal };
      if (typeof result === 'string') return result;
      return result.error.retry ? undefined : result.error;
    });
  }

  /** Looks after the attempts, and sends the reports that are due, those of all jobs together. */
  async #reports(): Promise<void> {
    const every = this.#terms.report_every_ms;
    const pause = Math.min(Math.max(every * 0.4, 10), 400);
    const sleptAt = performance.now();
    await sleep(pause, undefined, { signal: this.#ended.signal });
    const now = performance.now();
    if (now - sleptAt > pause + 1_000) this.#wokeAt = now;
    let due: Entry[] = [];
    for (const run of this.#running()) {
      const staleAfter = run.job.stale_after_ms;
      // A process that was frozen does not know yet how its last writes ended.
      const isAwake = now - this.#wokeAt > Math.min(5_000, staleAfter / 2);
      if (isAwake && now - Math.max(run.writtenAt, this.#okAt) > 0.8 * staleAfter) this.#stop(run, 'cut off');
      if (run.why) continue;
      if (run.kind.keepalive && now - run.sentAt > staleAfter / 6) run.report({});
      if (run.sending || now - run.sentAt < every) continue;
      const log = run.tail.take();
      if (run.pending || log !== undefined) due.push(this.#reported(run, log));
    }
    while (due.length > 0) {
      const sent = this.#fitting(due, REPORTS_MAX);
      due = due.slice(sent.length);
      void this.#report(sent);
    }
  }

  /** The report that waits, with the log if it fits. */
  #reported(run: Run, log: string | undefined): Entry {
    const report = run.send();
    if (log !== undefined) {
      const entry = entryOf(run, { ...report, log });
      if (entry.bytes <= this.#limits.entry) return entry;
      run.tail.putBack();
    }
    return entryOf(run, report);
  }

  async #report(entries: Entry[]): Promise<void> {
    const sentAt = performance.now();
    let results: (Result | undefined)[] = [];
    try {
      results = await this.#send('report', entries);
    } catch (error) {
      this.#log('warn', `reports were not written; the worker tries again: ${String(error)}`, {});
    }
    entries.forEach(({ run }, place) => {
      const result = results[place];
      if (result === 'ok' || result === 'cancel') run.written(sentAt);
      if (result === 'cancel' || result === 'lost') this.#stop(run, result === 'cancel' ? 'cancelled' : 'lost');
      if (typeof result === 'object') {
        run.refused = result.message;
        this.#tell('error', run, `a report was refused: ${result.message}`, 'refused');
        run.tail.putBack();
      }
      run.sent(result !== undefined);
    });
  }

  async #beat(asOf?: string): Promise<Answers['beat']> {
    // A job that is lost may be this worker's again, by another claim.
    const runs = [...this.#runs.values()].filter((run) => run.why !== 'lost');
    const running = runs.map(({ job }) => [job.job, job.token, job.claim]);
    const draining = this.#draining.signal.aborted;
    const beat = await this.#once('beat', fieldsOf({ draining, running, as_of: asOf }));
    this.#terms.keeps_logs = beat.keeps_logs ?? this.#terms.keeps_logs;
    for (const id of beat.lost) {
      const run = runs.find(({ job }) => job.job === id);
      if (run) this.#stop(run, 'lost');
    }
    for (const id of beat.cancel) {
      const run = runs.find(({ job }) => job.job === id);
      if (run) this.#stop(run, 'cancelled');
    }
    return beat;
  }

  async #beats(): Promise<void> {
    await this.#look.next(this.#terms.beat_every_ms);
    if (!this.#ended.signal.aborted) await this.#beat();
  }

  /** A message to this worker alone. */
  #told(message: Msg): void {
    const text = message.string();
    const told = { was_draining: this.#draining.signal.aborted, running: this.#runs.size };
    if (text === 'drain') this.stop();
    else if (text.startsWith('{')) this.#look.ring();
    message.respond(text === 'drain' ? JSON.stringify(told) : 'here');
  }

  /** The goodbye is the last request. */
  #endLoops(): void {
    this.#ended.abort();
    this.#look.ring();
    this.#toSettle.ring();
  }

  /** Lets handlers run for the grace, gives the others back, and says goodbye. */
  async #end(): Promise<void> {
    this.#log('info', 'the worker stops', { event: 'stopping', running: this.#runs.size });
    await this.#untilIdle(this.#options.graceMs ?? 20_000);
    for (const run of this.#running()) this.#stop(run, 'shutdown');
    await this.#untilIdle(STOPPED_WITHIN_MS);
    this.#endLoops();
    try {
      await this.#once('goodbye', {});
    } catch (error) {
      this.#log('warn', `no gateway heard the goodbye; others find this worker gone: ${String(error)}`, {});
    }
  }

  async #untilIdle(withinMs: number): Promise<void> {
    const until = performance.now() + withinMs;
    while (this.#runs.size > 0 && performance.now() < until) await this.#freed.next(100);
  }
}

function entryOf(run: Run, fields: Fields): Entry {
  const text = run.about(fields);
  return { run, fields, text, bytes: Buffer.byteLength(text) };
}

/** The end of an attempt that has no other. */
function failed(error: unknown): Fields {
  return fieldsOf({ outcome: 'retry', error: inspect(error).slice(0, ERROR_MAX).toWellFormed() });
}
