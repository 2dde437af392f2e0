// Places an order, and enqueues its confirmation in the same transaction: order_pg.mjs MAIL
//
//   npm install pg

import pg from "pg";

// ANCHOR: place
async function place(db, mail) {
  await db.query("BEGIN");
  try {
    const order = (await db.query("INSERT INTO orders (mail) VALUES ($1) RETURNING id", [mail])).rows[0].id;
    const enqueued = await db.query("SELECT tenure.enqueue('mail', 'confirm', $1, unique_key => $2) AS job", [
      { order },
      `order-${order}`,
    ]);
    if (!mail.includes("@")) throw new Error(`${mail} is no address`);
    await db.query("COMMIT");
    return enqueued.rows[0].job;
  } catch (error) {
    await db.query("ROLLBACK");
    throw error;
  }
}
// ANCHOR_END: place

const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  console.log(await place(client, process.argv[2]));
} finally {
  await client.end();
}
