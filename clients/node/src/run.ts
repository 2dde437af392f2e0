/** An attempt that runs here, and what its handler sees of it. */

import { Cancelled, Lost, TenureError } from './errors.js';

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
  writtenAt = performance.now();
  sentAt = -Infinity;
  pending: Fields | undefined;
  sending: Fields | undefined;

  constructor(
    readonly job: Job,
    readonly kind: Kind,
  ) {
    this.#names = fieldsOf({ job: job.job, token: job.token, receipt: job.receipt });
  }

  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController();
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
    if (!isOver) this.pending = { ...this.sending, ...this.pending };
    this.sending = undefined;
    this.changed.ring();
  }

  /** The report that goes with the settle, as JSON text: the one on its way may not arrive. */
  lastReport(): string | undefined {
    return this.sending || this.pending ? textOf({ ...this.sending, ...this.pending }) : undefined;
  }

  stop(why: Why): void {
    this.why = why;
    this.#controller?.abort(this.reason());
    this.changed.ring();
  }

  reason(): TenureError | undefined {
    if (this.why === 'lost') return new Lost("the job is no longer this worker's");
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

/** The most bytes of a checkpoint, and of a report or a settle. */
export interface Limits {
  checkpoint: number;
  entry: number;
}

/** What a handler knows of its job. */
export class Context {
  readonly #run: Run;
  readonly #limits: () => Limits;
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
  constructor(run: Run, queue: string, limits: () => Limits) {
    this.#run = run;
    this.#limits = limits;
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
    const report = fieldsOf({ ...texts, progress: percent, checkpoint });
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

  async #change(): Promise<void> {
    this.#run.check();
    await this.#run.changed.next();
    this.#run.check();
  }
}

/** A handler that forgets to await it must not end the process, and with it the jobs of others. */
function awaitedOrNot(done: Promise<void>): Promise<void> {
  done.catch(() => undefined);
  return done;
}
