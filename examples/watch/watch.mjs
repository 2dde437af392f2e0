// Prints what happens to one job: asks the workers to tell, and reads what they say. Needs @nats-io/transport-node.
//
//     node watch.mjs nats://127.0.0.1:4222 JOB_ID
import { connect } from "@nats-io/transport-node";

// TENURE_SUBJECT_PREFIX of the workers.
const prefix = process.env.SUBJECT_PREFIX ?? "jobs";
const [url, job] = process.argv.slice(2);
const client = await connect({ servers: url });

const name = crypto.randomUUID();
const changes = client.subscribe(`tenure.${prefix}.watcher.${name}`);
// Workers forget a watcher after 30 seconds. One that starts meanwhile hears of it by the next request.
const ask = () => client.publish(`tenure.${prefix}.watch`, JSON.stringify({ jobs: [job], to: name }));
ask();
setInterval(ask, 10_000).unref();
await client.flush();
console.log("watching");

for await (const message of changes) {
  const change = message.json();
  console.log(change.event, change.status, change.progress ?? "", change.message ?? "");
  if (change.event === "end") break;
}
await client.drain();
