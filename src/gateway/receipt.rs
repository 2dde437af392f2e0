//! Receipt: what a worker gets with a job, and sends with each write about it. To the worker it is opaque; a gateway
//! reads from it the claim, and the message to acknowledge. It is signed: with a made-up one, a worker could remove the
//! message of another job.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use uuid::Uuid;

use crate::job::{
    JobId,
    claim::{ClaimKey, FencingToken},
};

/// The bytes of a signature: half of a SHA-256.
const SIGNATURE: usize = 16;
/// The longest receipt that is read.
const LONGEST: usize = 4_096;

/// One claim of a job by a worker behind a gateway. The names are short: each report carries it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Receipt {
    #[serde(rename = "q")]
    pub(super) queue: String,
    #[serde(rename = "k")]
    pub(super) kind: String,
    /// The worker's id in the database.
    #[serde(rename = "w")]
    pub(super) worker: String,
    #[serde(rename = "j")]
    pub(super) job: JobId,
    #[serde(rename = "t")]
    pub(super) token: FencingToken,
    #[serde(rename = "c")]
    pub(super) claim: Uuid,
    #[serde(rename = "a")]
    pub(super) attempt: u32,
    #[serde(rename = "m")]
    pub(super) max_attempts: u32,
    #[serde(rename = "p")]
    pub(super) dispatch: i32,
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub(super) lane: Option<Box<str>>,
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<Uuid>,
    /// In milliseconds.
    #[serde(rename = "x")]
    pub(super) stale_after: u64,
    /// Whether a crash in the middle is the end of the job.
    #[serde(rename = "d", default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) dies_on_crash: bool,
    /// Whether nothing stays of the job once it has completed.
    #[serde(rename = "n", default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) no_history: bool,
    /// The dispatch of the job's message; `None`: it was a submission.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub(super) message_dispatch: Option<i32>,
    /// The subject of the message's answers.
    #[serde(rename = "r")]
    pub(super) reply: String,
    #[serde(rename = "s")]
    pub(super) sequence: u64,
    /// What the gateway that pulled the message says of its arrival.
    #[serde(rename = "e")]
    pub(super) mark: String,
}

impl Receipt {
    pub(super) fn key(&self) -> ClaimKey {
        ClaimKey { job: self.job, token: self.token, claim: self.claim }
    }
}

/// Signs receipts, and recognizes those of every gateway of the tenure. Cheap to clone.
#[derive(Clone)]
pub(super) struct Signer(Hmac<Sha256>);

impl Signer {
    pub(super) fn new(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes a key of any length")))
    }

    fn sign(&self, text: &[u8]) -> [u8; SIGNATURE] {
        let mut mac = self.0.clone();
        mac.update(text);
        let whole = mac.finalize().into_bytes();
        std::array::from_fn(|at| whole[at])
    }

    /// Writes a receipt.
    pub(super) fn write(&self, receipt: &Receipt) -> String {
        let text = serde_json::to_vec(receipt).unwrap_or_default();
        let mut bytes = self.sign(&text).to_vec();
        bytes.extend(text);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a receipt. `None`: no gateway of this tenure has written it.
    pub(super) fn read(&self, text: &str) -> Option<Receipt> {
        let bytes = URL_SAFE_NO_PAD.decode(text.get(..text.len().min(LONGEST))?).ok()?;
        let (signature, text) = bytes.split_at_checked(SIGNATURE)?;
        let mut mac = self.0.clone();
        mac.update(text);
        // In constant time.
        mac.verify_truncated_left(signature).ok()?;
        serde_json::from_slice(text).ok()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        Receipt {
            queue: "embed".into(),
            kind: "a.b".into(),
            worker: "embed/w".into(),
            job: JobId::generate(),
            token: FencingToken(3),
            claim: Uuid::new_v4(),
            attempt: 2,
            max_attempts: 5,
            dispatch: 4,
            lane: Some("org-7".into()),
            group: Some(Uuid::new_v4()),
            stale_after: 300_000,
            dies_on_crash: true,
            no_history: false,
            message_dispatch: None,
            reply: "$JS.ACK.JOBS.embed.1.2.3.1795000000123456789.0".into(),
            sequence: 2,
            mark: "1f.795".into(),
        }
    }

    #[test]
    fn every_gateway_with_the_key_reads_a_receipt_and_no_other() {
        let (ours, theirs, other) = (Signer::new(&[7; 32]), Signer::new(&[7; 32]), Signer::new(&[8; 32]));
        let written = ours.write(&receipt());
        assert!(written.len() < 1_000, "{}", written.len());
        assert_eq!(theirs.read(&written).unwrap().reply, receipt().reply);
        assert_eq!(other.read(&written), None);
    }

    #[test]
    fn a_changed_receipt_is_none() {
        let signer = Signer::new(&[7; 32]);
        let written = signer.write(&receipt());
        for at in (0..written.len()).step_by(7) {
            let mut forged = written.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(signer.read(&String::from_utf8(forged).unwrap()), None, "at {at}");
        }
        for forged in ["", "A", &written[..40], &written[..written.len() - 1], "…", &"A".repeat(100_000)] {
            assert_eq!(signer.read(forged), None, "{forged}");
        }
    }
}
