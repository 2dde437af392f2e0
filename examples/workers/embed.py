"""Embeds texts. Run it as `tenure work embed --exec 'python3 embed.py' --stay`: the model is loaded once a process."""

import hashlib
import json
import sys


def load_model():
    """Stands for a model that takes a minute to load."""
    return lambda text: [byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:4]]


def tell(**line):
    print(json.dumps(line), flush=True)


def embed(model, job):
    vectors = job["checkpoint"] or []
    texts = job["payload"]["texts"]
    for text in texts[len(vectors):]:
        vectors.append(model(text))
        # The heartbeat, what people see, and where another attempt continues.
        tell(stage="embedding", progress=100 * len(vectors) / len(texts), checkpoint=vectors)
    return {"vectors": vectors}


def main():
    model = load_model()
    for line in sys.stdin:
        job = json.loads(line)
        claim = job["claim_id"]
        try:
            tell(settle="complete", claim_id=claim, output=embed(model, job))
        except (KeyError, TypeError) as error:  # Of the payload: no other attempt can mend it.
            tell(settle="fail", claim_id=claim, error=f"the payload needs texts: {error!r}")
        except Exception as error:
            tell(settle="retry", claim_id=claim, error=repr(error))


main()
