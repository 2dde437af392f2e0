// One session of node-postgres: as session.py.

import { createInterface } from "node:readline";
import pg from "pg";

const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  let answer;
  try {
    let result;
    if ("sql" in order) {
      result = await db.query(order.sql);
    } else {
      const given = order.with.map((a) => (a !== null && typeof a === "object" ? JSON.stringify(a) : a));
      const places = given.map((_, n) => `$${n + 1}`).join(", ");
      result = await db.query(`SELECT tenure.${order.call}(${places}) AS answer`, given);
    }
    answer = { row: result.rows?.[0] ? Object.values(result.rows[0])[0] : null };
  } catch (error) {
    if (!error.code) throw error;
    answer = { code: error.code, message: error.message };
  }
  console.log(JSON.stringify(answer));
}
await db.end();
