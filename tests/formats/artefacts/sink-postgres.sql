SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.holdfast_commits (
    pipeline text NOT NULL,
    sink text NOT NULL,
    lineage bigint NOT NULL,
    epoch bigint NOT NULL,
    generation bigint NOT NULL,
    target text NOT NULL,
    row_count bigint NOT NULL,
    committed_at timestamp with time zone DEFAULT now() NOT NULL,
    mark text
);
CREATE TABLE public.holdfast_staged_6137a076f39283c45cd5377eeeb8c99a (
    id bigint,
    name text,
    holdfast_deleted boolean,
    holdfast_attempt bigint CONSTRAINT holdfast_staged_6137a076f39283c45cd53_holdfast_attempt_not_null NOT NULL
)
WITH (autovacuum_enabled='false', toast.autovacuum_enabled='false');
COMMENT ON TABLE public.holdfast_staged_6137a076f39283c45cd5377eeeb8c99a IS '{"owner":"museum~postgres","lineage":0,"epoch":2,"generation":1}';
CREATE TABLE public.people (
    id bigint NOT NULL,
    name text
);
INSERT INTO public.holdfast_commits VALUES ('museum', 'postgres', 0, 1, 1, '"public"."people"', 3, '2026-11-18 00:35:06.827903+00', 'f8183c42424f81bf9ee9f39756082abd');
INSERT INTO public.holdfast_staged_6137a076f39283c45cd5377eeeb8c99a VALUES (2, 'two again', false, 17);
INSERT INTO public.holdfast_staged_6137a076f39283c45cd5377eeeb8c99a VALUES (3, NULL, true, 17);
INSERT INTO public.holdfast_staged_6137a076f39283c45cd5377eeeb8c99a VALUES (4, 'four', false, 17);
INSERT INTO public.people VALUES (1, 'one');
INSERT INTO public.people VALUES (2, 'two');
INSERT INTO public.people VALUES (3, 'three');
ALTER TABLE ONLY public.holdfast_commits
    ADD CONSTRAINT holdfast_commits_pkey PRIMARY KEY (pipeline, sink, lineage, epoch);
ALTER TABLE ONLY public.people
    ADD CONSTRAINT people_pkey PRIMARY KEY (id);
