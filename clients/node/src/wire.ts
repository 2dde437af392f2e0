/** Requests to gateways. Each may be repeated; so a lost answer is no error. */

import { setTimeout as sleep } from 'node:timers/promises';

import {
  AuthorizationError,
  connect,
  type Msg,
  type NatsConnection,
  type NodeConnectionOptions,
} from '@nats-io/transport-node';

import { ProtocolError, TenureError } from './errors.js';

/** How long to wait for an answer, besides the time that the request itself asks to wait. */
export const ANSWERED_WITHIN_MS = 5_000;
/** How late an answer may be read. A gateway gives jobs back whose worker does not confirm them within 3 s. */
const READ_WITHIN_MS = 2_000;
/** How long each ping waits that looks for a gateway. Each goes to any: the next one may answer. */
const FIND_WITHIN_MS = [250, 250, 500, 500, 1_000];
/** How long requests go to one gateway, before another may get them: load spreads over new ones, too. */
const KEPT_FOR_MS = 30_000;
/** How long requests go to any gateway when none has answered a ping. */
const ANY_FOR_MS = 2_000;
/** How often a gateway is pinged for which a request waits, and how long it has to answer. */
const PING_EVERY_MS = 500;
const PONG_WITHIN_MS = 1_000;
const PING = Buffer.from('{"v":1}');

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

/** The gateway that gets the requests. `at` is what its address adds to their subjects; empty: any gateway. */
class Gateway {
  /** Each ends a request that it has not answered. */
  readonly #waiting = new Set<(why: Error) => void>();
  #until: number;

  constructor(
    readonly at: string,
    keptForMs = KEPT_FOR_MS,
  ) {
    this.#until = performance.now() + keptForMs;
  }

  get isKept(): boolean {
    return performance.now() < this.#until;
  }

  get isAwaited(): boolean {
    return this.#waiting.size > 0;
  }

  /** Waits for an answer, until the gateway is lost. */
  async answer<T>(asked: Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      this.#waiting.add(reject);
      void asked.then(resolve, reject).finally(() => this.#waiting.delete(reject));
    });
  }

  lose(): void {
    this.#until = 0;
    for (const end of this.#waiting) end(new Error('the gateway does not answer; another one is asked'));
    this.#waiting.clear();
  }
}

/** A connection to NATS, and the requests over it. */
export class Wire {
  readonly prefix: string;
  #maxPayload = 1_048_576;
  #gateway: Gateway | undefined;
  #finding: Promise<Gateway> | undefined;

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
    let gateway: Gateway;
    let answer: { ok?: { waited_ms?: number }; error?: Refusal };
    try {
      gateway = await this.#find(subject);
      let askedAt = performance.now();
      const message = await this.#request(gateway, subject, bytes, withinMs).catch(async (error: unknown) => {
        if (!gateway.at || !isGone(error)) throw error;
        // It has stopped: another one gets the request.
        gateway.lose();
        gateway = await this.#find(subject);
        askedAt = performance.now();
        return this.#request(gateway, subject, bytes, withinMs);
      });
      answer = message.json();
      if (!answer.ok && !answer.error) throw new Error('the answer makes no sense');
      const unread = performance.now() - askedAt - (answer.ok?.waited_ms ?? withinMs - READ_WITHIN_MS);
      if (unread > READ_WITHIN_MS) throw new Error('it was read too late; the process was frozen, or blocked');
      // The gateway waits for this before it lets go of the jobs that it hands over.
      if (message.reply) message.respond();
    } catch (error) {
      const why = String(error);
      const hint = isGone(error) ? 'no gateway answers; start one with `tenure gateway`: ' : '';
      throw new Unanswered(`${subject}: ${hint}${why}`);
    }
    if (!answer.error) return answer.ok;
    const { code, message, retry } = answer.error;
    // By an older gateway, which gets what is meant for others, too.
    const isOld = code === 'unknown_request' && gateway.at !== '';
    if (isOld) this.#gateway = new Gateway('');
    // It may be this gateway's trouble alone: what follows goes to the next one that is found.
    if (code === 'unavailable' && this.#gateway === gateway && gateway.at) this.#gateway = undefined;
    if (isOld || (retry && code !== 'hello_first')) throw new Unanswered(`${subject}: ${message}`);
    throw new ProtocolError(code, message);
  }

  async #request(gateway: Gateway, subject: string, body: Uint8Array, timeout: number): Promise<Msg> {
    return gateway.answer(this.nc.request(`${this.prefix}.${subject}${gateway.at}`, body, { timeout }));
  }

  /** The gateway that requests go to, or any, if none can be told from the others. */
  async #find(subject: string): Promise<Gateway> {
    if (this.#gateway?.isKept) return this.#gateway;
    this.#finding ??= this.#pinged(subject.slice(0, subject.lastIndexOf('.') + 1)).finally(() => {
      this.#finding = undefined;
    });
    return (this.#gateway = await this.#finding);
  }

  async #pinged(of: string): Promise<Gateway> {
    for (const within of FIND_WITHIN_MS) {
      try {
        const message = await this.nc.request(`${this.prefix}.${of}ping`, PING, { timeout: within });
        const address = message.json<{ ok?: { gateway?: string } }>().ok?.gateway;
        // An older gateway knows no pings.
        if (address === undefined) return new Gateway('');
        const gateway = new Gateway(`@${address}`);
        void this.#watchOver(gateway, of);
        return gateway;
      } catch (error) {
        if (isGone(error) || this.nc.isClosed()) throw error;
      }
    }
    return new Gateway('', ANY_FOR_MS);
  }

  /** Pings a gateway while requests wait for it: one that is frozen keeps its subscriptions. */
  async #watchOver(gateway: Gateway, of: string): Promise<void> {
    while ((gateway.isKept || gateway.isAwaited) && !this.nc.isClosed()) {
      await sleep(PING_EVERY_MS, undefined, { ref: false });
      if (!gateway.isAwaited) continue;
      const askedAt = performance.now();
      try {
        await this.nc.request(`${this.prefix}.${of}ping${gateway.at}`, PING, { timeout: PONG_WITHIN_MS });
      } catch (error) {
        // Otherwise this process was frozen, or blocked.
        if (performance.now() - askedAt > PONG_WITHIN_MS + PING_EVERY_MS) continue;
        this.log('warn', `the gateway does not answer, and another one is asked: ${String(error)}`, {});
        gateway.lose();
      }
    }
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

/** Whether NATS says that no one is there who could answer. */
function isGone(error: unknown): boolean {
  return String(error).includes('no responders');
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
