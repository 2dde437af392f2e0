/** An attempt that runs here, and what its handler sees of it. */

import { setMaxListeners } from 'node:events';

import { Cancelled, Lost, Permanent, Suspended, TenureError } from './errors.js';
import type { Tail } from './log.js';

/** Ten years: the longest time that a gateway takes. */
const DELAY_MAX = 10 * 365 * 86_400_000;
/** The most jobs of one `all`. */
const JOBS_MAX = 1_000;
/** 1 to 512 bytes, without control characters and without halves of a pair. */
const STEP_NAME = /^[^\p{Cc}\p{Cs}]+$/u;
const STEP_NAME_BYTES_MAX = 512;

/** A job as a gateway hands it over. */
export interface Job {
  job: string;
  kind: string;
  attempt: number;
  max_attempts: number;
  token: number;
  claim: string;
  receipt: string;
  stale_after_ms: number;
  after_reset: boolean;
  checkpoint?: unknown;
  traceparent?: string;
  payload?: unknown;
  parts?: number;
}

/** A handler; its type is what it says that its payload is. */
export type Handler<Payload = unknown> = (payload: Payload, ctx: Context) => unknown;

export interface Kind {
  handler: Handler;
  rules: Record<string, unknown>;
  timeoutMs: number | undefined;
  keepalive: boolean;
}

/** Why a handler was asked to stop. */
export type Why = 'lost' | 'cancelled' | 'timeout' | 'shutdown' | 'cut off';

/** The fields of a JSON object, each as JSON text: a value is written once, when it is said. */
export type Fields = Record<string, string>;

export function fieldsOf(values: Record<string, unknown>): Fields {
  const said = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  // A function has no JSON text, although the type of `stringify` says so.
  const texts = said.map(([name, value]) => [name, JSON.stringify(value) as string | undefined]);
  return Object.fromEntries(texts.filter(([, text]) => text !== undefined)) as Fields;
}

export function textOf(fields: Fields): string {
  return `{${Object.entries(fields)
    .map(([name, text]) => `"${name}":${text}`)
    .join()}}`;
}

/** JSON text; what has none, as `undefined`, is `null`. */
function jsonOf(value: unknown): string {
  const text = JSON.stringify(value) as string | undefined;
  return text ?? 'null';
}

/** Whole milliseconds. A time that has passed already is none. */
export function whole(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : Math.round(Math.min(Math.max(ms, 0), DELAY_MAX));
}

/** Wakes those who wait for a change. They look at what has changed: a wait may end without a ring. */
export class Bell {
  #rang = false;
  #waiting: (() => void)[] = [];

  ring(): void {
    this.#rang = this.#waiting.length === 0;
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** Waits for the next ring since the last wait. */
  async next(withinMs?: number): Promise<void> {
    if (!this.#rang) {
      await new Promise<void>((resolve) => {
        const timer =
          withinMs === undefined
            ? undefined
            : setTimeout(() => {
                this.ring();
              }, withinMs);
        this.#waiting.push(() => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
    this.#rang = false;
  }
}

/** An attempt that runs here. */
export class Run {
  readonly #names: Fields;
  /** Made when it is asked for: most handlers of short jobs do not. */
  #controller: AbortController | undefined;
  readonly changed = new Bell();
  /** Its handler may still do something. */
  isRunning = true;
  began = false;
  why: Why | undefined;
  refused: string | undefined;
  /** Its settle was refused with its report, and goes without it. */
  isUnreported = false;
  /** The names of the steps that it has called. */
  readonly steps = new Set<string>();
  writtenAt = performance.now();
  sentAt = -Infinity;
  pending: Fields | undefined;
  sending: Fields | undefined;

  constructor(
    readonly job: Job,
    readonly kind: Kind,
    readonly tail: Tail,
  ) {
    this.#names = fieldsOf({ job: job.job, token: job.token, receipt: job.receipt });
  }

  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController();
      // A handler may have many steps at once, and each listens.
      setMaxListeners(0, this.#controller.signal);
      if (this.why) this.#controller.abort(this.reason());
    }
    return this.#controller.signal;
  }

  /** An entry of a request about this attempt. */
  about(fields: Fields): string {
    return textOf({ ...fields, ...this.#names });
  }

  report(later: Fields): void {
    this.pending = { ...this.pending, ...later };
  }

  /** Takes the report that waits, and marks it as on its way. */
  send(): Fields {
    this.sending = this.pending ?? {};
    this.pending = undefined;
    this.sentAt = performance.now();
    return this.sending;
  }

  /** Ends the sending of a report. One that was not written waits again, under what was said since. */
  sent(isOver: boolean): void {
    if (!isOver) {
      this.pending = { ...this.sending, ...this.pending };
      this.tail.putBack();
    }
    this.sending = undefined;
    this.changed.ring();
  }

  /** Notes a write that was sent then, and has succeeded. */
  written(sentAt: number): void {
    this.writtenAt = Math.max(this.writtenAt, sentAt);
    this.changed.ring();
  }

  stop(why: Why): void {
    this.why = why;
    this.#controller?.abort(this.reason());
    this.changed.ring();
  }

  reason(): TenureError | undefined {
    if (this.why === 'lost') return new Lost();
    if (this.why) return new Cancelled(this.why);
    return this.refused === undefined ? undefined : new TenureError(`a report was refused: ${this.refused}`);
  }

  check(): void {
    const reason = this.reason();
    if (reason) throw reason;
  }
}

/** What a handler reports. What is absent stays as it is. */
export interface Progress {
  stage?: string | undefined;
  /** 0 to 100. */
  percent?: number | undefined;
  message?: string | undefined;
  /** Any JSON; the next attempt begins with it. */
  checkpoint?: unknown;
}

/** A job that another one enqueues, in its own queue. */
export interface NewJob {
  kind: string;
  payload: unknown;
  maxAttempts?: number | undefined;
  lane?: string | undefined;
  priority?: number | undefined;
}

/** How a job has ended for which another one waits. */
interface End {
  job: string;
  completed: boolean;
  output_omitted?: boolean;
  output?: unknown;
}

/** What gateways answer about steps, unless the job is lost. */
export interface StepAnswers {
  recorded: { lost?: boolean; recorded: boolean; result?: unknown };
  step: { lost?: boolean };
  sleep: { lost?: boolean; left_ms: number };
  event: { lost?: boolean; came: boolean; payload?: unknown; late?: boolean; left_ms?: number | null };
  all: { lost?: boolean; ended: boolean };
  outputs: { lost?: boolean; ends: End[]; next?: number | null };
}

function outputOf(end: End): unknown {
  if (end.output_omitted) {
    throw new Permanent(`the output of job ${end.job} fits into no message of NATS: store it elsewhere`);
  }
  return end.output ?? null;
}

/** Asks a gateway about the steps of an attempt, until it answers. */
type Ask = <R extends keyof StepAnswers>(request: R, fields: Fields) => Promise<StepAnswers[R]>;

/** The most bytes of a checkpoint, and of a report or a settle. */
export interface Limits {
  checkpoint: number;
  entry: number;
}

/** What a handler knows of its job. */
export class Context {
  readonly #run: Run;
  readonly #limits: () => Limits;
  readonly #ask: Ask;
  readonly queue: string;
  readonly jobId: string;
  readonly kind: string;
  readonly attempt: number;
  readonly maxAttempts: number;
  /** Grows with each claim of the job: other systems can refuse older ones. */
  readonly token: number;
  readonly claim: string;
  /** The last checkpoint that an earlier attempt has reported, or `null`. */
  readonly checkpoint: unknown;
  /** Whether the last attempt was lost. */
  readonly afterReset: boolean;
  readonly traceparent: string | undefined;
  /** Aborted when the handler should stop, with `Lost` or `Cancelled` as the reason. */
  get signal(): AbortSignal {
    return this.#run.signal;
  }

  /** @internal */
  constructor(run: Run, queue: string, limits: () => Limits, ask: Ask) {
    this.#run = run;
    this.#limits = limits;
    this.#ask = ask;
    this.queue = queue;
    const { job } = run;
    this.jobId = job.job;
    this.kind = job.kind;
    this.attempt = job.attempt;
    this.maxAttempts = job.max_attempts;
    this.token = job.token;
    this.claim = job.claim;
    this.checkpoint = job.checkpoint ?? null;
    this.afterReset = job.after_reset;
    this.traceparent = job.traceparent;
  }

  /**
   * Adds a line to the log that is kept with the job, the last 64 KiB of each of its last three attempts, if the gateway
   * keeps logs (`TENURE_JOB_LOGS`). Returns at once.
   */
  log(line: unknown): void {
    this.#run.tail.add(line);
  }

  /** An idempotency key for an effect of this job elsewhere: the same in every attempt. */
  key(name: string): string {
    return `${this.jobId}/${name}`;
  }

  /**
   * Reports, which is the sign of life. Returns at once, unless no write succeeded for half of `staleAfterMs`.
   * Throws `Lost` or `Cancelled` when the handler should stop.
   */
  progress(report: Progress = {}): Promise<void> {
    return awaitedOrNot(this.#progress(report));
  }

  async #progress({ stage, percent, message, checkpoint }: Progress): Promise<void> {
    const run = this.#run;
    run.check();
    const texts = { stage: stage?.toWellFormed(), message: message?.toWellFormed() };
    const progress = percent === undefined ? undefined : Math.min(Math.max(percent, 0), 100);
    const report = fieldsOf({ ...texts, progress, checkpoint });
    const most = this.#limits();
    const bytes = Buffer.byteLength(report.checkpoint ?? '');
    if (bytes > most.checkpoint) {
      throw new TenureError(`the checkpoint has ${bytes} bytes, but at most ${most.checkpoint} are allowed`);
    }
    const whole = Buffer.byteLength(run.about({ ...run.sending, ...run.pending, ...report }));
    if (whole > most.entry) {
      throw new TenureError(`the report has ${whole} bytes, but a message of NATS holds at most ${most.entry}`);
    }
    run.report(report);
    while (performance.now() - run.writtenAt > run.job.stale_after_ms / 2) await this.#change();
  }

  /** Waits until the last report is written. */
  flush(): Promise<void> {
    return awaitedOrNot(this.#flush());
  }

  async #flush(): Promise<void> {
    const run = this.#run;
    while (run.pending || run.sending) {
      run.sentAt = -Infinity;
      await this.#change();
    }
  }

  /**
   * Does a step of the job, unless an earlier attempt has recorded it. Resolves to its result as JSON gives it back, in
   * each attempt the same; `undefined` is `null`. It runs at least once, and is recorded once: a worker that dies between
   * the end of the work and its record leaves no trace. What the work throws is not recorded, and the step may be called
   * again. `name` is 1 to 512 bytes without control characters, and is used once in an attempt.
   */
  step<T>(name: string, work: () => T | Promise<T>): Promise<T> {
    return awaitedOrNot(this.#step(name, work));
  }

  async #step<T>(name: string, work: () => T | Promise<T>): Promise<T> {
    this.#call(name);
    let text: string;
    let tookMs: number;
    try {
      // Nothing is recorded of a job that has not run before.
      if (this.token > 1) {
        const { recorded, result } = await this.#ask('recorded', fieldsOf({ name }));
        if (recorded) return (result ?? null) as T;
      }
      const beganAt = performance.now();
      const result = await work();
      tookMs = Math.round(performance.now() - beganAt);
      text = jsonOf(result);
      const { checkpoint, entry } = this.#limits();
      const limit = checkpoint < entry ? 'TENURE_CHECKPOINT_BYTES_MAX' : 'max_payload of NATS';
      mustFit(`the result of step ${JSON.stringify(name)} has`, text, Math.min(checkpoint, entry), limit);
    } catch (error) {
      this.#run.steps.delete(name);
      throw error;
    }
    await this.#ask('step', { ...fieldsOf({ name, took_ms: tookMs }), result: text });
    return JSON.parse(text) as T;
  }

  /**
   * Lets the job sleep, without a slot, a message or an attempt: throws `Suspended`, and returns at once when the handler
   * runs again after `ms`. Put what comes before into steps.
   */
  sleep(name: string, ms: number): Promise<void> {
    return awaitedOrNot(this.#sleep(name, ms));
  }

  async #sleep(name: string, ms: number): Promise<void> {
    this.#call(name);
    const answer = await this.#ask('sleep', fieldsOf({ name, lasts_ms: lasting(name, ms) }));
    if (answer.left_ms > 0) throw new Suspended(undefined, answer.left_ms);
  }

  /** Waits for an event, and resolves to its payload. Throws `Suspended` until it has come. */
  event<T = unknown>(name: string): Promise<T> {
    return awaitedOrNot(this.#came<T>(name));
  }

  async #came<T>(name: string): Promise<T> {
    const event = await this.#event(name, undefined);
    if (event) return event.payload as T;
    const why = `an earlier attempt has stopped waiting for event ${JSON.stringify(name)}`;
    throw new Permanent(`${why}: wait for it with eventWithin`);
  }

  /** Waits for an event, at most for `ms` from the first call on. Resolves to `undefined` if it has not come by then. */
  eventWithin<T = unknown>(name: string, ms: number): Promise<T | undefined> {
    return awaitedOrNot(this.#cameWithin<T>(name, ms));
  }

  async #cameWithin<T>(name: string, ms: number): Promise<T | undefined> {
    return (await this.#event(name, lasting(name, ms)))?.payload as T | undefined;
  }

  /** `undefined`: the job has stopped waiting. */
  async #event(name: string, withinMs: number | undefined): Promise<{ payload: unknown } | undefined> {
    this.#call(name);
    const answer = await this.#ask('event', fieldsOf({ name, within_ms: withinMs }));
    if (answer.came) return { payload: answer.payload ?? null };
    if (answer.late) return undefined;
    throw new Suspended(name, answer.left_ms ?? undefined);
  }

  /**
   * Enqueues jobs, at most 1000, once in the life of this one, and resolves to their outputs, in this order. Throws
   * `Suspended` until all have ended, and `Permanent` if one did not complete.
   */
  all<T = unknown>(name: string, jobs: readonly NewJob[]): Promise<T[]> {
    return awaitedOrNot(this.#all<T>(name, jobs));
  }

  async #all<T>(name: string, jobs: readonly NewJob[]): Promise<T[]> {
    this.#call(name);
    if (jobs.length === 0) return [];
    if (jobs.length > JOBS_MAX) {
      throw new Permanent(`step ${JSON.stringify(name)} has ${jobs.length} jobs, but at most ${JOBS_MAX} are allowed`);
    }
    const listed = jobs.map(({ kind, payload, maxAttempts, lane, priority }) =>
      textOf({ payload: jsonOf(payload), ...fieldsOf({ kind, max_attempts: maxAttempts, lane, priority }) }),
    );
    const text = `[${listed.join()}]`;
    const { entry } = this.#limits();
    mustFit(`the jobs of step ${JSON.stringify(name)} have`, text, entry, 'max_payload of NATS');
    const answer = await this.#ask('all', { ...fieldsOf({ name }), jobs: text });
    if (!answer.ended) throw new Suspended(name, undefined);
    const ends = await this.#ends(name);
    const failed = ends.filter((end) => !end.completed);
    if (failed[0]) {
      const which = `${failed.length} of ${ends.length} jobs of step ${JSON.stringify(name)}`;
      const first = `the first of them job ${failed[0].job}`;
      throw new Permanent(`${which} did not complete, ${first}: redrive them, and then this job`);
    }
    return ends.map((end) => outputOf(end) as T);
  }

  /** The outputs of the completed jobs that this one follows in its group, in the order in which they were added. */
  outputs<T = unknown>(): Promise<T[]> {
    const completed = this.#ends().then((ends) => ends.filter((end) => end.completed));
    return awaitedOrNot(completed.then((ends) => ends.map((end) => outputOf(end) as T)));
  }

  /** The jobs before this one that have failed or were cancelled. */
  failedBefore(): Promise<string[]> {
    const failed = this.#ends().then((ends) => ends.filter((end) => !end.completed));
    return awaitedOrNot(failed.then((ends) => ends.map((end) => end.job)));
  }

  /** How the jobs of a step have ended, or those that this one follows. */
  async #ends(name?: string): Promise<End[]> {
    this.#run.check();
    const all: End[] = [];
    let after: number | null | undefined = 0;
    while (typeof after === 'number') {
      const { ends, next }: StepAnswers['outputs'] = await this.#ask('outputs', fieldsOf({ name, after }));
      for (const end of ends) all.push(end);
      after = next;
    }
    return all;
  }

  /** Notes the call of a step. */
  #call(name: string): void {
    const run = this.#run;
    run.check();
    if (!STEP_NAME.test(name) || Buffer.byteLength(name) > STEP_NAME_BYTES_MAX) {
      const rule = `1 to ${STEP_NAME_BYTES_MAX} bytes without control characters`;
      throw new Permanent(`the name of a step must have ${rule}: ${JSON.stringify(name)}`);
    }
    if (run.steps.has(name)) {
      const what = `step ${JSON.stringify(name)} was called twice in one attempt`;
      throw new Permanent(`${what}: give each step of a job a name of its own`);
    }
    run.steps.add(name);
  }

  async #change(): Promise<void> {
    this.#run.check();
    await this.#run.changed.next();
    this.#run.check();
  }
}

/** A handler that forgets to await it must not end the process, and with it the jobs of others. */
function awaitedOrNot<T>(done: Promise<T>): Promise<T> {
  done.catch(() => undefined);
  return done;
}

/** Whole milliseconds. What is no number would be a wait without an end. */
function lasting(name: string, ms: number): number {
  const lasts = whole(ms);
  if (lasts === undefined || Number.isNaN(lasts)) {
    throw new Permanent(`the time of step ${JSON.stringify(name)} is ${ms}, not a number of milliseconds`);
  }
  return lasts;
}

function mustFit(what: string, text: string, most: number, limit: string): void {
  const bytes = Buffer.byteLength(text);
  if (bytes > most) {
    const way = 'store what is large elsewhere, and pass its place';
    throw new Permanent(`${what} ${bytes} bytes, but at most ${most} are allowed (${limit}): ${way}`);
  }
}
