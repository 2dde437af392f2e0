/** A producer: enqueues jobs, and looks at them. */

import { randomUUID } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';

import { ANSWERED_WITHIN_MS, type Connection, Wire } from './wire.js';

/** The answer to an enqueue. `created` is false if another job holds the key. */
export interface Enqueued {
  job: string;
  created: boolean;
}

export interface EnqueueOptions extends Asking {
  /** At most one job of the queue is created for it. Random by default. */
  key?: string;
  delayMs?: number;
  runAt?: Date;
  maxAttempts?: number;
  lane?: string;
  priority?: number;
  /** Words or `key=value` to find the job by, such as `customer=7`. */
  tags?: string[];
  traceparent?: string;
}

/** A job as its producer sees it. What is absent is `null`. */
export interface Job {
  job: string;
  kind: string;
  status: 'queued' | 'processing' | 'completed' | 'failed' | 'cancelled';
  attempt: number;
  maxAttempts: number;
  stage: string | null;
  progress: number | null;
  message: string | null;
  output: unknown;
  /** Whether the output was too large for the answer. */
  outputOmitted: boolean;
  lastError: string | null;
  ended: boolean;
}

/**
 * What became of an event. `known`: one of that name had come before, and counts. `late`: the job has stopped waiting for
 * it. `name_taken`: a step of the job has that name. `finished`: the job has ended.
 */
export type Signalled = 'delivered' | 'known' | 'late' | 'name_taken' | 'finished';

/** A request is repeated until a gateway answers, or the signal is aborted. */
export interface Asking {
  signal?: AbortSignal;
}

/** A producer. */
export class Client {
  private constructor(private readonly wire: Wire) {}

  static async connect(to: Connection): Promise<Client> {
    return new Client(await Wire.connect(to));
  }

  async close(): Promise<void> {
    await this.wire.nc.close();
  }

  /** Enqueues a job. If the signal ends it, the job may exist. */
  async enqueue(queue: string, kind: string, payload: unknown, options: EnqueueOptions = {}): Promise<Enqueued> {
    const { key = randomUUID(), delayMs, runAt, maxAttempts, signal, ...same } = options;
    const times = {
      delay_ms: delayMs === undefined ? undefined : Math.round(delayMs),
      run_at: runAt?.toISOString(),
    };
    const body = { kind, payload, key, max_attempts: maxAttempts, ...times, ...same };
    const answer = await this.#ask(queue, 'enqueue', body, 0, signal);
    return { job: answer.job as string, created: answer.created as boolean };
  }

  /** Looks at a job. */
  async job(queue: string, job: string, { signal }: Asking = {}): Promise<Job> {
    return jobOf(await this.#ask(queue, 'job', { job }, 0, signal));
  }

  /** Waits for the end of a job, at most for `timeoutMs`: look at `ended`. */
  async wait(
    queue: string,
    job: string,
    { timeoutMs = Infinity, signal }: Asking & { timeoutMs?: number } = {},
  ): Promise<Job> {
    const until = performance.now() + timeoutMs;
    for (;;) {
      const left = Math.round(Math.min(20_000, Math.max(0, until - performance.now())));
      const seen = jobOf(await this.#ask(queue, 'wait', { job, wait_ms: left }, left, signal));
      if (seen.ended || performance.now() >= until) return seen;
    }
  }

  /** Yields the job at each change, until it has ended. */
  async *watch(
    queue: string,
    job: string,
    { everyMs = 1_000, signal }: Asking & { everyMs?: number } = {},
  ): AsyncGenerator<Job> {
    const asking = signal ? { signal } : {};
    let seen = await this.job(queue, job, asking);
    yield seen;
    while (!seen.ended) {
      const next = await this.wait(queue, job, { timeoutMs: everyMs, ...asking });
      if (!isDeepStrictEqual(next, seen)) yield next;
      seen = next;
    }
  }

  /** Cancels a job. False: it runs, and its handler was told; or it had ended. */
  async cancel(queue: string, job: string, { signal }: Asking = {}): Promise<boolean> {
    return (await this.#ask(queue, 'cancel', { job }, 0, signal)).cancelled as boolean;
  }

  /** Tells a job of an event. */
  async signal(
    queue: string,
    job: string,
    name: string,
    payload: unknown = null,
    { signal }: Asking = {},
  ): Promise<Signalled> {
    return (await this.#ask(queue, 'signal', { job, name, payload }, 0, signal)).answer as Signalled;
  }

  async #ask(queue: string, request: string, body: object, waitMs: number, signal?: AbortSignal): Promise<Answer> {
    const text = JSON.stringify({ v: 1, ...body });
    return (await this.wire.ask(`p.${queue}.${request}`, text, waitMs + ANSWERED_WITHIN_MS, signal)) as Answer;
  }
}

type Answer = Record<string, unknown>;

function jobOf({ max_attempts, last_error, output_omitted, ...same }: Answer): Job {
  const renamed = { maxAttempts: max_attempts, lastError: last_error, outputOmitted: output_omitted === true };
  return { ...same, ...renamed } as unknown as Job;
}
