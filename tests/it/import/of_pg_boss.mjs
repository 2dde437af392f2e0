// Fills pg-boss with jobs in each state, through its own API: `node of_pg_boss.mjs PACKAGE`. Ends when all are there.
const module = await import(process.argv[2]);
const PgBoss = module.PgBoss ?? module.default;
const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, supervise: false, schedule: false });
boss.on("error", (error) => console.error(error));
await boss.start();
for (const name of ["mail", "mail.urgent", "slow", "flaky", "doomed", "other"]) {
  await boss.createQueue(name, { name, policy: "standard" });
}

await boss.send("mail", JSON.parse(process.env.PAYLOAD), { retryLimit: 4 });
await boss.send("mail", { n: 2 }, { startAfter: new Date("2031-01-31T12:00:00.123Z"), retryLimit: 0 });
await boss.send("mail", { n: 3 }, { singletonKey: "k-3" });
await boss.send("mail", null, { retryLimit: 1 });
await boss.send("mail.urgent", { n: 5 });
await boss.send("other", { n: 6 });

await boss.send("slow", { n: 7 });
await boss.fetch("slow");

await boss.send("flaky", { n: 8 }, { retryLimit: 4, retryDelay: 3600 });
const [flaky] = [await boss.fetch("flaky")].flat();
await boss.fail("flaky", flaky.id, new Error("not yet"));

await boss.send("doomed", { n: 9 }, { retryLimit: 0 });
const [doomed] = [await boss.fetch("doomed")].flat();
await boss.fail("doomed", doomed.id, new Error("never"));

await boss.stop({ graceful: false });
process.exit(0);
