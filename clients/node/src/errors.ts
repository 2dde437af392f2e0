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
export class Lost extends TenureError {
  constructor(message = "the job is no longer this worker's") {
    super(message);
  }
}

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

/**
 * The job waits: for the end of a sleep, an event, or jobs of its own. It is no failure: let it pass. The attempt ends and
 * does not count, and the handler begins anew when that has come.
 */
export class Suspended extends TenureError {
  /** `awaits`: the name of an event or a step; absent for a sleep. `leftMs`: absent for a wait without an end. */
  constructor(
    readonly awaits: string | undefined,
    readonly leftMs: number | undefined,
  ) {
    const waits = awaits === undefined ? 'sleeps' : `waits for ${JSON.stringify(awaits)}`;
    const most = awaits === undefined ? '' : ', at most';
    super(`the job ${waits}${leftMs === undefined ? '' : `${most} for ${leftMs} ms`}; let this error pass`);
  }
}

/** The wait of which an error tells: itself, by its cause, or as a group of such errors, as of `Promise.any`. */
export function suspension(error: unknown, seen = new Set<unknown>()): Suspended | undefined {
  if (error instanceof Suspended) return error;
  if (!(error instanceof Error) || seen.has(error)) return undefined;
  seen.add(error);
  if (error instanceof AggregateError && error.errors.length > 0) {
    const waits = error.errors.map((inner) => suspension(inner, seen));
    return waits.every((wait) => wait) ? waits[0] : undefined;
  }
  return suspension(error.cause, seen);
}

/** Throw it to end the job as cancelled, for this reason. */
export class Cancel extends TenureError {}
