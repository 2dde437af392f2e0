/** What a handler throws to end its attempt, and what it may get from its context. */

/** The base of all errors of this package. */
export class TenureError extends Error {
  override readonly name = this.constructor.name;
}

/** A gateway refused a request. Repeating it would not help. */
export class ProtocolError extends TenureError {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(`${code}: ${message}`);
  }
}

/** The job is no longer this worker's. Nothing that its handler does counts. */
export class Lost extends TenureError {}

/** The job is to be cancelled, its time is over, or the worker stops. */
export class Cancelled extends TenureError {}

/** Throw it to have the job tried again, after `afterMs`, or after the usual backoff. */
export class Retry extends TenureError {
  readonly afterMs: number | undefined;

  constructor(error = 'the handler asked for another attempt', options: { afterMs?: number | undefined } = {}) {
    super(error);
    this.afterMs = options.afterMs;
  }
}

/** Throw it when no attempt could succeed: the job becomes a dead letter. */
export class Permanent extends TenureError {}

/** Throw it to have the job run again after `ms`. The attempt does not count. */
export class Snooze extends TenureError {
  constructor(readonly ms: number) {
    super(`snoozed for ${ms} ms`);
  }
}

/** Throw it to end the job as cancelled, for this reason. */
export class Cancel extends TenureError {}
