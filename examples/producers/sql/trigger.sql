-- A trigger enqueues the confirmation of every order. Any program may place the order.
-- ANCHOR: trigger
CREATE FUNCTION confirm_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenure.enqueue('mail', 'confirm', jsonb_build_object('order', NEW.id), unique_key => 'order-' || NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER confirm_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION confirm_order();
-- ANCHOR_END: trigger
