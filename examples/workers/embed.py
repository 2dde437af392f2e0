"""Embeds texts. Run it as `tenure work embed --exec 'python3 embed.py' --stay`: the model is loaded once a process."""

import hashlib
import json
import sys


def load_model():
    """Stands for a model that takes a minute to load."""
    return lambda text: [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:4]]


def tell(job, **line):
    print(json.dumps({"claim_id": job["claim_id"], **line}, allow_nan=False), flush=True)


def are_texts(texts):
    return isinstance(texts, list) and all(isinstance(text, str) for text in texts)


def embed(model, job, texts):
    vectors = job["checkpoint"] or []
    for text in texts[len(vectors):]:
        vectors.append(model(text))
        # The heartbeat, what people see, and where another attempt continues.
        tell(job, stage="embedding", progress=100 * len(vectors) / len(texts), checkpoint=vectors)
    return {"vectors": vectors}


def main():
    model = load_model()
    for line in sys.stdin:
        job = json.loads(line)
        texts = job["payload"].get("texts")
        if not are_texts(texts):
            # No other attempt can mend the payload.
            tell(job, settle="fail", error="the payload needs texts: a list of strings")
            continue
        try:
            tell(job, settle="complete", output=embed(model, job, texts))
        except Exception as error:
            tell(job, settle="retry", error=repr(error))


main()
