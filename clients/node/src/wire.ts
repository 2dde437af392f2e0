/** Requests to gateways. Each may be repeated; so a lost answer is no error. */

import { setTimeout as sleep } from 'node:timers/promises';

import { AuthorizationError, connect, type NatsConnection, type NodeConnectionOptions } from '@nats-io/transport-node';

import { ProtocolError, TenureError } from './errors.js';

/** How long to wait for an answer, besides the time that the request itself asks to wait. */
export const ANSWERED_WITHIN_MS = 5_000;
/** How late an answer may be read. A gateway gives jobs back whose worker does not confirm them within 3 s. */
const READ_WITHIN_MS = 2_000;

export type Log = (
  level: 'debug' | 'info' | 'warn' | 'error',
  message: string,
  fields: Record<string, unknown>,
) => void;

/** Where NATS is, and how to reach it. */
export interface Connection {
  /** `nats://host:4222`, `tls://user:password@host`, `nats://token@host`; several with commas between. */
  url: string;
  /** The subject prefix of the tenure. */
  prefix?: string;
  /** The prefix of the subjects of answers, if the NATS user may not subscribe to `_INBOX.>`. */
  inboxPrefix?: string;
  /** Further options of the NATS client, such as `tls` or `authenticator`. */
  nats?: NodeConnectionOptions;
  /** Gets what happens. Without it, all but `debug` is written to standard error, a JSON object a line. */
  log?: Log;
}

/** No gateway answered in time, or one asked to repeat the request. */
export class Unanswered extends TenureError {}

/** A connection to NATS, and the requests over it. */
export class Wire {
  readonly prefix: string;
  #maxPayload = 1_048_576;

  private constructor(
    readonly nc: NatsConnection,
    { prefix = 'jobs' }: Connection,
    private readonly log: Log,
  ) {
    this.prefix = `tenure.${prefix}`;
  }

  /** Connects, and reconnects for ever. */
  static async connect(to: Connection): Promise<Wire> {
    const log = to.log ?? writeLine;
    const options = optionsOf(to);
    const nc = await connect(options).catch((error: unknown) => {
      throw error instanceof AuthorizationError ? error : new Unanswered(`NATS cannot be reached: ${String(error)}`);
    });
    const wire = new Wire(nc, to, log);
    void wire.#watch();
    return wire;
  }

  /** The most bytes of a message. Unknown while the connection is away: the last number counts. */
  get maxPayload(): number {
    return (this.#maxPayload = this.nc.info?.max_payload ?? this.#maxPayload);
  }

  /** Sends a request once. */
  async once(subject: string, body: string, withinMs = ANSWERED_WITHIN_MS): Promise<unknown> {
    if (this.nc.isClosed()) throw new TenureError('the connection to NATS is closed');
    const bytes = Buffer.from(body);
    if (bytes.length > this.maxPayload) {
      const most = `a message of NATS holds at most ${this.maxPayload} (max_payload)`;
      throw new TenureError(`${subject}: the request has ${bytes.length} bytes, but ${most}`);
    }
    const askedAt = performance.now();
    let answer: { ok?: { waited_ms?: number }; error?: Refusal };
    try {
      const message = await this.nc.request(`${this.prefix}.${subject}`, bytes, { timeout: withinMs });
      answer = message.json();
      if (!answer.ok && !answer.error) throw new Error('the answer makes no sense');
      const unread = performance.now() - askedAt - (answer.ok?.waited_ms ?? withinMs - READ_WITHIN_MS);
      if (unread > READ_WITHIN_MS) throw new Error('it was read too late; the process was frozen, or blocked');
      // The gateway waits for this before it lets go of the jobs that it hands over.
      if (message.reply) message.respond();
    } catch (error) {
      const why = String(error);
      const hint = why.includes('no responders') ? 'no gateway answers; start one with `tenure gateway`: ' : '';
      throw new Unanswered(`${subject}: ${hint}${why}`);
    }
    if (!answer.error) return answer.ok;
    const { code, message, retry } = answer.error;
    if (retry && code !== 'hello_first') throw new Unanswered(`${subject}: ${message}`);
    throw new ProtocolError(code, message);
  }

  /** Repeats a request until it is answered. */
  async ask(subject: string, body: string, withinMs: number, signal?: AbortSignal): Promise<unknown> {
    return repeat(() => this.once(subject, body, withinMs), signal, this.log);
  }

  async #watch(): Promise<void> {
    for await (const status of this.nc.status()) {
      if (status.type === 'error') this.log('error', `NATS says: ${status.error.message}`, {});
      if (status.type === 'disconnect') this.log('warn', 'the connection to NATS broke; it is made again', {});
      if (status.type === 'reconnect') this.log('info', 'connected to NATS again', {});
    }
  }
}

export interface Refusal {
  code: string;
  message: string;
  retry: boolean;
}

/** Repeats a step until it is answered, or the signal is aborted. */
export async function repeat<T>(step: () => Promise<T>, signal: AbortSignal | undefined, log: Log): Promise<T> {
  const pauses = new Pauses();
  for (;;) {
    signal?.throwIfAborted();
    try {
      return await orAborted(step(), signal);
    } catch (error) {
      if (!(error instanceof Unanswered)) throw error;
      log('warn', `no answer; the request is repeated: ${error.message}`, {});
    }
    await pauses.next(signal);
  }
}

/** Pauses that double from 100 ms up to 5 s, each with jitter. */
export class Pauses {
  #pause = 100;

  async next(signal?: AbortSignal): Promise<void> {
    const pause = this.#pause * (0.5 + Math.random() / 2);
    this.#pause = Math.min(this.#pause * 2, 5_000);
    await orAborted(sleep(pause, undefined, { signal }), signal);
  }
}

/** Waits for a result, or throws the reason of the signal. */
async function orAborted<T>(work: Promise<T>, signal?: AbortSignal): Promise<T> {
  if (!signal) return work;
  let giveUp = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    giveUp = () => {
      reject(signal.reason as Error);
    };
    if (signal.aborted) giveUp();
    signal.addEventListener('abort', giveUp);
  });
  return Promise.race([work, aborted]).finally(() => {
    signal.removeEventListener('abort', giveUp);
  });
}

/** The NATS client reads no scheme and no user from a URL. */
function optionsOf({ url, inboxPrefix, nats }: Connection): NodeConnectionOptions {
  const urls = url.split(',').map((one) => new URL(one.includes('://') ? one.trim() : `nats://${one.trim()}`));
  const { username, password } = urls.find((one) => one.username) ?? { username: '', password: '' };
  const [user, pass] = [decodeURIComponent(username), decodeURIComponent(password)];
  return {
    servers: urls.map((one) => one.host),
    name: 'tenure',
    maxReconnectAttempts: -1,
    ignoreAuthErrorAbort: true,
    reconnectTimeWait: 250,
    // A connection that is silently dead is found within half a minute.
    pingInterval: 10_000,
    timeout: 5_000,
    noAsyncTraces: true,
    ...(user && (pass ? { user, pass } : { token: user })),
    ...(urls.some((one) => one.protocol === 'tls:') && { tls: {} }),
    ...(inboxPrefix && { inboxPrefix }),
    ...nats,
  };
}

export const writeLine: Log = (level, message, fields) => {
  const time = new Date().toISOString();
  if (level !== 'debug') process.stderr.write(`${JSON.stringify({ time, level, message, ...fields })}\n`);
};
