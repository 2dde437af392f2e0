// Embeds texts. Run it as `tenure work embed --exec 'node embed.mjs' --stay`: the model is loaded once a process.

import { createHash } from 'node:crypto';
import { createInterface } from 'node:readline';

/** Stands for a model that takes a minute to load. */
const loadModel = async () => (text) =>
    [...createHash('sha256').update(text).digest().subarray(0, 4)].map((byte) => byte / 255);

const tell = ({ claim_id }, line) => process.stdout.write(JSON.stringify({ claim_id, ...line }) + '\n');

const areTexts = (texts) => Array.isArray(texts) && texts.every((text) => typeof text === 'string');

async function embed(model, job, texts) {
    const vectors = job.checkpoint ?? [];
    for (const text of texts.slice(vectors.length)) {
        vectors.push(await model(text));
        // The heartbeat, what people see, and where another attempt continues.
        tell(job, { stage: 'embedding', progress: (100 * vectors.length) / texts.length, checkpoint: vectors });
    }
    return { vectors };
}

const model = await loadModel();
for await (const line of createInterface({ input: process.stdin })) {
    const job = JSON.parse(line);
    const { texts } = job.payload;
    if (!areTexts(texts)) {
        // No other attempt can mend the payload.
        tell(job, { settle: 'fail', error: 'the payload needs texts: a list of strings' });
        continue;
    }
    try {
        tell(job, { settle: 'complete', output: await embed(model, job, texts) });
    } catch (error) {
        tell(job, { settle: 'retry', error: String(error) });
    }
}
