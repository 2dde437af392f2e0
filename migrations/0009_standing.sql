-- Standing submissions: what a scan has read in the stream, message by message, so that max_queued may count it.

-- At least `standing` messages of the queue were submissions that no worker had received when NATS had made
-- `standing_deliveries` deliveries of the queue: each later delivery may have taken one of them. standing_of: the time
-- at which NATS created the consumer that counts the deliveries; empty: there was none.
ALTER TABLE tenure.queue_stats
    ADD COLUMN standing            bigint,
    ADD COLUMN standing_deliveries bigint,
    ADD COLUMN standing_of         text,
    ADD COLUMN standing_until      timestamptz;

-- stream_measured_at: the last measurement by a release that counts messages, too. While it differs from measured_at, a
-- worker of an earlier release has measured since, and has removed the rows of queues that hold only submissions.
-- measuring_until: a process that is no worker measures until then, because no worker does.
ALTER TABLE tenure.scanner_state
    ADD COLUMN stream_measured_at timestamptz,
    ADD COLUMN measuring_until    timestamptz;
