/** The log of an attempt: the end of what it prints, which a gateway keeps with the job. */

import { inspect } from 'node:util';

const BYTES_MAX = 64 * 1024;
/** Between two reports of a log. The last lines go with the end of the attempt. */
const EVERY_MS = 5_000;

/** The last lines of an attempt. Keeps nothing if its gateway keeps no logs. */
export class Tail {
  #lines: string[] = [];
  #chars = 0;
  #isCut = false;
  #hasMore = false;
  #takenAt = -Infinity;

  constructor(readonly isKept: boolean) {}

  add(said: unknown): void {
    if (!this.isKept) return;
    const text = typeof said === 'string' ? said : inspect(said);
    const line = `${text.slice(-BYTES_MAX).replace(/[\r\n]+$/, '')}\n`;
    this.#isCut ||= text.length > BYTES_MAX;
    this.#lines.push(line);
    this.#chars += line.length;
    this.#hasMore = true;
    // Not at each line: joining the text costs as much as it has characters.
    if (this.#chars > 2 * BYTES_MAX) this.#shorten();
  }

  /** What is to be reported, as JSON text. `undefined`: nothing is new, or it is too soon. */
  take(): string | undefined {
    const now = performance.now();
    if (!this.#hasMore || now - this.#takenAt < EVERY_MS) return undefined;
    this.#hasMore = false;
    this.#takenAt = now;
    return JSON.stringify({ text: this.#shorten(), is_cut: this.#isCut });
  }

  /**
   * All of it, for the end of the attempt: a gateway may have had no time to write an earlier part. `undefined`: nothing
   * was added.
   */
  whole(): string | undefined {
    if (this.#lines.length === 0) return undefined;
    return JSON.stringify({ text: this.#shorten(), is_cut: this.#isCut });
  }

  /** What was taken is not reported. */
  putBack(): void {
    this.#hasMore = this.#lines.length > 0;
  }

  /** Cuts the first lines off, so that the rest begins with a whole line, if one is short enough. */
  #shorten(): string {
    let whole = Buffer.from(this.#lines.join('').toWellFormed());
    if (whole.length > BYTES_MAX) {
      this.#isCut = true;
      let from = whole.length - BYTES_MAX;
      // Not from the middle of a character.
      while (((whole[from] ?? 0) & 0xc0) === 0x80) from++;
      whole = whole.subarray(from);
      const rest = whole.subarray(whole.indexOf('\n') + 1);
      if (rest.length > 0) whole = rest;
    }
    const kept = whole.toString();
    this.#lines = [kept];
    this.#chars = kept.length;
    return kept;
  }
}
