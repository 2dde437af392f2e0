// Publishes one job, with only the NATS client: node produce.mjs QUEUE KIND JSON KEY
//
//     npm install @nats-io/transport-node @nats-io/jetstream
//     NATS_URL=nats://127.0.0.1:4222 node produce.mjs texts word_count '"one two"' text-7
//
// Prints the sequence that the stream assigned. With the same key, a second run publishes the same job.
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";

import { jetstream } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";

const TRIES = 5;

// ANCHOR: publish
/** Publishes the message until the stream confirms it; the key makes repetition safe. */
async function publish(js, subject, payload, key) {
  const keyed = headers();
  keyed.set("Tenure-Idempotency-Key", key);
  // The stream compares Nats-Msg-Id across all queues; the subject in it limits it to this queue.
  const msgID = `${subject}:${key}`;
  for (let attempt = 1; ; attempt++) {
    try {
      return await js.publish(subject, payload, { msgID, headers: keyed, timeout: 5_000 });
    } catch (error) {
      // No answer: the message may or may not be accepted. A refusal (full stream, no leader): it is not.
      console.error(`try ${attempt}: ${error}`);
      if (attempt === TRIES) throw error;
      await sleep(1_000 * 2 ** (attempt - 1));
    }
  }
}
// ANCHOR_END: publish

const [queue, kind, payload, key] = process.argv.slice(2);
if (key === undefined) {
  console.error("usage: node produce.mjs QUEUE KIND JSON KEY");
  process.exit(2);
}
const prefix = process.env.TENURE_SUBJECT_PREFIX ?? "jobs";
const urls = process.env.NATS_URL.split(",").map((url) => new URL(url));
const connection = await connect({
  servers: urls.map((url) => url.host),
  // This client takes no password from a URL.
  user: decodeURIComponent(urls[0].username) || undefined,
  pass: decodeURIComponent(urls[0].password) || undefined,
  tls: urls[0].protocol === "tls:" ? {} : undefined,
  inboxPrefix: process.env.TENURE_NATS_INBOX_PREFIX ?? "_INBOX",
});
try {
  const ack = await publish(jetstream(connection), `${prefix}.${queue}.${kind}`, payload, key);
  console.log(ack.seq, ack.duplicate ? "(accepted before)" : "");
} catch {
  console.error("it is unknown whether the stream accepted the job; run this again with the same key");
  process.exitCode = 1;
} finally {
  await connection.close();
}
