// Fills graphile-worker with jobs in each state, through its own API: `node of_graphile_worker.mjs PACKAGE`. Prints `ready`
// when all are there and two run, which go on until this process is killed.
const { Logger, makeWorkerUtils, run, runOnce } = await import(process.argv[2]);
const connectionString = process.env.DATABASE_URL;
const logger = new Logger(() => () => {});
const utils = await makeWorkerUtils({ connectionString, logger });
await utils.migrate();

await utils.addJob("flaky", { n: 8 }, { maxAttempts: 5 });
await utils.addJob("doomed", { n: 9 }, { maxAttempts: 1 });
const fail = async () => {
  throw new Error("not yet");
};
await runOnce({ connectionString, logger, noHandleSignals: true, taskList: { flaky: fail, doomed: fail } });

await utils.addJob("send", JSON.parse(process.env.PAYLOAD), { queueName: "mail", maxAttempts: 5 });
await utils.addJob("send", { n: 2 }, { queueName: "mail", runAt: new Date("2031-01-31T12:00:00.123Z"), maxAttempts: 1 });
await utils.addJob("send", { n: 3 }, { queueName: "mail", jobKey: "k-3" });
await utils.addJob("send", [1, null, "two"], { queueName: "mail", maxAttempts: 2, flags: ["slow"] });
await utils.addJob("mail:urgent", { n: 5 });
await utils.addJob("send", { text: "a\u0000b" }, { queueName: "mail" });

await utils.addJob("slow", { n: 7 }, { queueName: "serial" });
await utils.addJob("send", { n: 10 }, { queueName: "serial" });
await utils.addJob("slow", { n: 11 });
let running = 0;
const slow = async () => {
  running += 1;
  if (running === 2) console.log("ready");
  await new Promise(() => {});
};
await run({ connectionString, logger, noHandleSignals: true, concurrency: 2, taskList: { slow } });
