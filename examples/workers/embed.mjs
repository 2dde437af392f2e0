// Embeds texts. Run it as `tenure work embed --exec 'node embed.mjs' --stay`: the model is loaded once a process.

import { createHash } from 'node:crypto';
import { createInterface } from 'node:readline';

/** Stands for a model that takes a minute to load. */
const loadModel = async () => (text) =>
    [...createHash('sha256').update(text).digest().subarray(0, 4)].map((byte) => byte / 255);

const tell = (line) => process.stdout.write(JSON.stringify(line) + '\n');

async function embed(model, { checkpoint, payload: { texts } }) {
    if (!Array.isArray(texts)) throw new TypeError('the payload needs texts');
    const vectors = checkpoint ?? [];
    for (const text of texts.slice(vectors.length)) {
        vectors.push(await model(text));
        // The heartbeat, what people see, and where another attempt continues.
        tell({ stage: 'embedding', progress: (100 * vectors.length) / texts.length, checkpoint: vectors });
    }
    return { vectors };
}

const model = await loadModel();
for await (const line of createInterface({ input: process.stdin })) {
    const job = JSON.parse(line);
    const { claim_id } = job;
    try {
        tell({ settle: 'complete', claim_id, output: await embed(model, job) });
    } catch (error) {
        // An error of the payload: no other attempt can mend it.
        tell({ settle: error instanceof TypeError ? 'fail' : 'retry', claim_id, error: String(error) });
    }
}
