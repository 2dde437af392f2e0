/** Workers and producers of tenure over NATS: see docs/worker-protocol.md of tenure for what they say to a gateway. */

export { type Asking, Client, type Enqueued, type EnqueueOptions, type Job, type Signalled } from './client.js';
export { Cancel, Cancelled, Lost, Permanent, ProtocolError, Retry, Snooze, Suspended, TenureError } from './errors.js';
export type { Context, Handler, NewJob, Progress } from './run.js';
export type { Connection, Log } from './wire.js';
export { type Rules, Worker, type WorkerOptions } from './worker.js';
