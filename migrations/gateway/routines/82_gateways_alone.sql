-- say_alone notes that a gateway decides without Redis now. Those that have said nothing for an hour go; a row that another
-- call has in hand is left to it, so that no two wait for each other.
CREATE OR REPLACE FUNCTION queengate.say_alone(p_gateway text) RETURNS void
LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO queengate.gateways_alone (gateway, said_at) VALUES (p_gateway, now())
    ON CONFLICT (gateway) DO UPDATE SET said_at = excluded.said_at;
    DELETE FROM queengate.gateways_alone WHERE gateway IN (
        SELECT a.gateway FROM queengate.gateways_alone a WHERE a.said_at < now() - interval '1 hour' FOR UPDATE SKIP LOCKED);
$$;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queengate FROM PUBLIC;
