// Places an order, and enqueues its confirmation in the same transaction: order_prisma.mjs MAIL
//
//   npm install prisma @prisma/client @prisma/adapter-pg
//   npx prisma generate --schema schema.prisma

import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "./client/index.js";

// ANCHOR: place
function place(prisma, mail) {
  return prisma.$transaction(async (tx) => {
    const order = await tx.order.create({ data: { mail } });
    const [{ job }] = await tx.$queryRaw`
      SELECT tenure.enqueue('mail', 'confirm', ${{ order: order.id }}::jsonb, unique_key => ${`order-${order.id}`}) AS job`;
    if (!mail.includes("@")) throw new Error(`${mail} is no address`);
    return job;
  });
}
// ANCHOR_END: place

const client = new PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }) });
try {
  console.log(await place(client, process.argv[2]));
} finally {
  await client.$disconnect();
}
