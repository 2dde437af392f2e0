// pg-boss's flows, as `tenure bench groups` measures groups: from one job over all others onto one, in one flow or in
// flows of a hundred. Prints jobs per second from the first start to the last completion, of DATABASE_URL's Postgres.
//
//   DATABASE_URL=… node benches/peers/node/pg_boss_groups.mjs [JOBS [JOBS_OF_A_FLOW]]
import process from 'node:process';

const path = process.env.PG_BOSS ?? '../../../.tools/queues/node_modules/pg-boss/dist/index.js';
const { PgBoss } = await import(path);
const jobs = Number(process.argv[2] ?? 50_000);
const each = Number(process.argv[3] ?? jobs);
const order = { order: 1, customer: 'c', lines: [{ sku: 's', quantity: 2, cents: 50 }] };

const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, max: 20, schedule: false, flowIntervalSeconds: 1 });
boss.on('error', (error) => console.error(error));
await boss.start();
const queue = `groups-${process.pid}`;
await boss.createQueue(queue);
for (let flow = 0; flow < jobs / each; flow += 1) {
  const parts = Array.from({ length: each - 2 }, (_, n) => `part-${n}`);
  const job = (ref, dependsOn) => ({ ref, name: queue, data: order, ...(dependsOn && { dependsOn }) });
  await boss.flow([job('first'), ...parts.map((ref) => job(ref, ['first'])), job('last', parts)]);
}
// Autovacuum would come too late.
await boss.getDb().executeSql('ANALYZE pgboss.job_common, pgboss.job_dependency');
let done = 0;
let beganAt;
const ended = new Promise((resolve) => {
  const run = async (batch) => {
    beganAt ??= performance.now();
    done += batch.length;
    if (done >= jobs) setImmediate(resolve);
  };
  // The fastest that its options allow: batches, the shortest poll, several loops.
  const options = { batchSize: 1_000, pollingIntervalSeconds: 0.5, localConcurrency: 8 };
  boss.work(queue, options, run).catch((error) => { console.error(error); process.exit(1); });
});
// It looks once a second for jobs whose predecessors have completed; asked to, more often.
let isOver = false;
const resolving = (async () => {
  while (!isOver) {
    await boss.resolveFlow();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
})();
await ended;
isOver = true;
await resolving;
const seconds = (performance.now() - beganAt) / 1000;
console.log(`${jobs} jobs in flows of ${each}: ${Math.round(jobs / seconds)} jobs/s`);
await boss.stop({ graceful: false });
process.exit(0);
