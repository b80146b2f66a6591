-- One page per statement. The statements of a window [@min, @max] take @resource, @min, @max, @after_version,
-- @after_document (0 and 0 for the first page) and @limit, `stream` also @after_kind (0); `everything` takes @resource,
-- @max, @after_document and @limit. Names that end in _of_subject also take @subject, and are for resources that are by
-- access.
--
-- After each page run `standing`, as a separate statement, outside of a transaction or under READ COMMITTED: journals
-- are emptied under concurrent reads, but never before `oldest` is raised. The page is complete if its window begins at
-- the `oldest` that is read then, or above; below that the window is expired, and the page may have gaps: begin again
-- with `everything`. If `switches` or `epoch` differ from before the page, it used stale settings: repeat it with the
-- present strategy and access. `changes_denormalized` and `changes_monotonic` depend on the data of their strategies;
-- the others depend on the journals, and are correct under every strategy.

-- changes: documents whose derived version is in the window, by (version, document): strategy journal
WITH event AS (
    SELECT c.version, c.document
    FROM forge_versions.document_change AS c
    WHERE c.resource = @resource AND c.version BETWEEN @min AND @max AND c.version >= @after_version
    UNION
    SELECT e.version, r.parent
    FROM forge_versions.identity_change AS e
    JOIN forge_versions.reference AS r ON r.child = e.document
    JOIN forge_versions.document AS p ON p.id = r.parent
    WHERE p.resource = @resource AND e.version BETWEEN @min AND @max AND e.version >= @after_version
)
SELECT TOP (@limit) event.version, d.id, d.[identity], d.body, d.content_version, d.identity_version
FROM event
JOIN forge_versions.document AS d ON d.id = event.document
CROSS APPLY (
    SELECT MAX(contributor.version) AS version
    FROM (
        SELECT d.content_version AS version
        UNION ALL
        SELECT d.identity_version
        UNION ALL
        SELECT c.identity_version
        FROM forge_versions.reference AS r JOIN forge_versions.document AS c ON c.id = r.child
        WHERE r.parent = d.id
    ) AS contributor
) AS derived
WHERE derived.version = event.version
    AND (event.version > @after_version OR (event.version = @after_version AND d.id > @after_document))
ORDER BY event.version, d.id;

-- changes_denormalized: the same, with the parent's resource on the edge
WITH event AS (
    SELECT c.version, c.document
    FROM forge_versions.document_change AS c
    WHERE c.resource = @resource AND c.version BETWEEN @min AND @max AND c.version >= @after_version
    UNION
    SELECT e.version, r.parent
    FROM forge_versions.identity_change AS e
    JOIN forge_versions.reference AS r ON r.child = e.document
    WHERE r.parent_resource = @resource AND e.version BETWEEN @min AND @max AND e.version >= @after_version
)
SELECT TOP (@limit) event.version, d.id, d.[identity], d.body, d.content_version, d.identity_version
FROM event
JOIN forge_versions.document AS d ON d.id = event.document
CROSS APPLY (
    SELECT MAX(contributor.version) AS version
    FROM (
        SELECT d.content_version AS version
        UNION ALL
        SELECT d.identity_version
        UNION ALL
        SELECT c.identity_version
        FROM forge_versions.reference AS r JOIN forge_versions.document AS c ON c.id = r.child
        WHERE r.parent = d.id
    ) AS contributor
) AS derived
WHERE derived.version = event.version
    AND (event.version > @after_version OR (event.version = @after_version AND d.id > @after_document))
ORDER BY event.version, d.id;

-- changes_monotonic: the same, by the greatest token that any dependency ever had
SELECT TOP (@limit) derived.version, d.id, d.[identity], d.body, d.content_version, d.identity_version
FROM forge_versions.document AS d
CROSS APPLY (
    SELECT MAX(contributor.version) AS version
    FROM (VALUES (d.content_version), (d.identity_version), (d.max_dependency)) AS contributor (version)
) AS derived
WHERE d.resource = @resource AND derived.version BETWEEN @min AND @max
    AND (derived.version > @after_version OR (derived.version = @after_version AND d.id > @after_document))
ORDER BY derived.version, d.id;

-- changes_of_subject: the same as changes, for documents that a subject may see; a grant counts as a change for it
WITH event AS (
    SELECT c.version, c.document
    FROM forge_versions.document_change AS c
    WHERE c.resource = @resource AND c.version BETWEEN @min AND @max AND c.version >= @after_version
    UNION
    SELECT e.version, r.parent
    FROM forge_versions.identity_change AS e
    JOIN forge_versions.reference AS r ON r.child = e.document
    JOIN forge_versions.document AS p ON p.id = r.parent
    WHERE p.resource = @resource AND e.version BETWEEN @min AND @max AND e.version >= @after_version
    UNION
    SELECT a.version, a.document
    FROM forge_versions.access AS a
    WHERE a.subject = @subject AND a.resource = @resource AND a.version BETWEEN @min AND @max
        AND a.version >= @after_version
)
SELECT TOP (@limit) event.version, d.id, d.[identity], d.body, d.content_version, d.identity_version
FROM event
JOIN forge_versions.document AS d ON d.id = event.document
JOIN forge_versions.access AS granted ON granted.document = d.id AND granted.subject = @subject
CROSS APPLY (
    SELECT MAX(contributor.version) AS version
    FROM (
        SELECT d.content_version AS version
        UNION ALL
        SELECT d.identity_version
        UNION ALL
        SELECT granted.version
        UNION ALL
        SELECT c.identity_version
        FROM forge_versions.reference AS r JOIN forge_versions.document AS c ON c.id = r.child
        WHERE r.parent = d.id
    ) AS contributor
) AS derived
WHERE derived.version = event.version
    AND (event.version > @after_version OR (event.version = @after_version AND d.id > @after_document))
ORDER BY event.version, d.id;

-- references: the references of each document of a page, with their present identities; takes @documents, a JSON array
-- of ids
SELECT r.parent, r.name, c.id, c.resource, c.[identity], r.in_identity
FROM OPENJSON(@documents) AS asked
JOIN forge_versions.reference AS r ON r.parent = CAST(asked.value AS bigint)
JOIN forge_versions.document AS c ON c.id = r.child
ORDER BY r.parent, r.name;

-- deletes: documents deleted in the window
SELECT TOP (@limit) x.version, x.document, x.[identity], x.subject
FROM forge_versions.deletion AS x
WHERE x.resource = @resource AND x.version BETWEEN @min AND @max AND x.version >= @after_version
    AND (x.version > @after_version OR x.document > @after_document) AND x.subject IS NULL
ORDER BY x.version, x.document;

-- deletes_of_subject: documents deleted, or hidden from a subject and not shown again
SELECT TOP (@limit) x.version, x.document, x.[identity], x.subject
FROM forge_versions.deletion AS x
WHERE x.resource = @resource AND x.version BETWEEN @min AND @max AND x.version >= @after_version
    AND (x.version > @after_version OR x.document > @after_document) AND x.subject = @subject
    AND NOT EXISTS (
        SELECT 1 FROM forge_versions.access AS a WHERE a.subject = @subject AND a.document = x.document
    )
ORDER BY x.version, x.document;

-- key_changes: documents whose identity changed in the window, with the old and new identity
SELECT TOP (@limit) k.version, k.document, k.old_identity, k.new_identity
FROM forge_versions.key_change AS k
WHERE k.resource = @resource AND k.version BETWEEN @min AND @max AND k.version >= @after_version
    AND (k.version > @after_version OR k.document > @after_document)
ORDER BY k.version, k.document;

-- key_changes_of_subject: the same, for documents that a subject has access to, from that access on
SELECT TOP (@limit) k.version, k.document, k.old_identity, k.new_identity
FROM forge_versions.key_change AS k
JOIN forge_versions.access AS a ON a.document = k.document AND a.subject = @subject AND a.version < k.version
WHERE k.resource = @resource AND k.version BETWEEN @min AND @max AND k.version >= @after_version
    AND (k.version > @after_version OR k.document > @after_document)
ORDER BY k.version, k.document;

-- stream: key changes (kind 0), deletions (1) and changed documents (2), by (version, document, kind): applying them in
-- that order gives the present resource
WITH event AS (
    SELECT c.version, c.document
    FROM forge_versions.document_change AS c
    WHERE c.resource = @resource AND c.version BETWEEN @min AND @max AND c.version >= @after_version
    UNION
    SELECT e.version, r.parent
    FROM forge_versions.identity_change AS e
    JOIN forge_versions.reference AS r ON r.child = e.document
    JOIN forge_versions.document AS p ON p.id = r.parent
    WHERE p.resource = @resource AND e.version BETWEEN @min AND @max AND e.version >= @after_version
),
item AS (
    SELECT
        event.version, d.id AS document, 2 AS kind, d.[identity], NULL AS old_identity, d.body, d.content_version,
        d.identity_version
    FROM event
    JOIN forge_versions.document AS d ON d.id = event.document
    CROSS APPLY (
        SELECT MAX(contributor.version) AS version
        FROM (
            SELECT d.content_version AS version
            UNION ALL
            SELECT d.identity_version
            UNION ALL
            SELECT c.identity_version
            FROM forge_versions.reference AS r JOIN forge_versions.document AS c ON c.id = r.child
            WHERE r.parent = d.id
        ) AS contributor
    ) AS derived
    WHERE derived.version = event.version
    UNION ALL
    SELECT k.version, k.document, 0, k.new_identity, k.old_identity, NULL, NULL, NULL
    FROM forge_versions.key_change AS k
    WHERE k.resource = @resource AND k.version BETWEEN @min AND @max AND k.version >= @after_version
    UNION ALL
    SELECT x.version, x.document, 1, x.[identity], NULL, NULL, NULL, NULL
    FROM forge_versions.deletion AS x
    WHERE x.resource = @resource AND x.version BETWEEN @min AND @max AND x.version >= @after_version
        AND x.subject IS NULL
)
SELECT TOP (@limit)
    item.version, item.document, item.kind, item.[identity], item.old_identity, item.body, item.content_version,
    item.identity_version
FROM item
WHERE item.version > @after_version
    OR (item.version = @after_version AND item.document > @after_document)
    OR (item.version = @after_version AND item.document = @after_document AND item.kind > @after_kind)
ORDER BY item.version, item.document, item.kind;

-- stream_of_subject: the same for documents that a subject may see, or saw
WITH event AS (
    SELECT c.version, c.document
    FROM forge_versions.document_change AS c
    WHERE c.resource = @resource AND c.version BETWEEN @min AND @max AND c.version >= @after_version
    UNION
    SELECT e.version, r.parent
    FROM forge_versions.identity_change AS e
    JOIN forge_versions.reference AS r ON r.child = e.document
    JOIN forge_versions.document AS p ON p.id = r.parent
    WHERE p.resource = @resource AND e.version BETWEEN @min AND @max AND e.version >= @after_version
    UNION
    SELECT a.version, a.document
    FROM forge_versions.access AS a
    WHERE a.subject = @subject AND a.resource = @resource AND a.version BETWEEN @min AND @max
        AND a.version >= @after_version
),
item AS (
    SELECT
        event.version, d.id AS document, 2 AS kind, d.[identity], NULL AS old_identity, d.body, d.content_version,
        d.identity_version
    FROM event
    JOIN forge_versions.document AS d ON d.id = event.document
    JOIN forge_versions.access AS granted ON granted.document = d.id AND granted.subject = @subject
    CROSS APPLY (
        SELECT MAX(contributor.version) AS version
        FROM (
            SELECT d.content_version AS version
            UNION ALL
            SELECT d.identity_version
            UNION ALL
            SELECT granted.version
            UNION ALL
            SELECT c.identity_version
            FROM forge_versions.reference AS r JOIN forge_versions.document AS c ON c.id = r.child
            WHERE r.parent = d.id
        ) AS contributor
    ) AS derived
    WHERE derived.version = event.version
    UNION ALL
    SELECT k.version, k.document, 0, k.new_identity, k.old_identity, NULL, NULL, NULL
    FROM forge_versions.key_change AS k
    JOIN forge_versions.access AS a ON a.document = k.document AND a.subject = @subject AND a.version < k.version
    WHERE k.resource = @resource AND k.version BETWEEN @min AND @max AND k.version >= @after_version
    UNION ALL
    SELECT x.version, x.document, 1, x.[identity], NULL, NULL, NULL, NULL
    FROM forge_versions.deletion AS x
    WHERE x.resource = @resource AND x.version BETWEEN @min AND @max AND x.version >= @after_version
        AND x.subject = @subject
        AND NOT EXISTS (
            SELECT 1 FROM forge_versions.access AS a WHERE a.subject = @subject AND a.document = x.document
        )
)
SELECT TOP (@limit)
    item.version, item.document, item.kind, item.[identity], item.old_identity, item.body, item.content_version,
    item.identity_version
FROM item
WHERE item.version > @after_version
    OR (item.version = @after_version AND item.document > @after_document)
    OR (item.version = @after_version AND item.document = @after_document AND item.kind > @after_kind)
ORDER BY item.version, item.document, item.kind;

-- everything: the whole resource in the order of ids, except documents changed after @max: the start of a copy, which
-- then reads the stream from @max + 1 on
SELECT TOP (@limit) derived.version, d.id, d.[identity], d.body, d.content_version, d.identity_version
FROM forge_versions.document AS d
CROSS APPLY (
    SELECT MAX(contributor.version) AS version
    FROM (
        SELECT d.content_version AS version
        UNION ALL
        SELECT d.identity_version
        UNION ALL
        SELECT c.identity_version
        FROM forge_versions.reference AS r JOIN forge_versions.document AS c ON c.id = r.child
        WHERE r.parent = d.id
    ) AS contributor
) AS derived
WHERE d.resource = @resource AND d.id > @after_document AND derived.version <= @max
ORDER BY d.id;

-- everything_of_subject: the same for documents that a subject may see
SELECT TOP (@limit) derived.version, d.id, d.[identity], d.body, d.content_version, d.identity_version
FROM forge_versions.document AS d
JOIN forge_versions.access AS granted ON granted.document = d.id AND granted.subject = @subject
CROSS APPLY (
    SELECT MAX(contributor.version) AS version
    FROM (
        SELECT d.content_version AS version
        UNION ALL
        SELECT d.identity_version
        UNION ALL
        SELECT granted.version
        UNION ALL
        SELECT c.identity_version
        FROM forge_versions.reference AS r JOIN forge_versions.document AS c ON c.id = r.child
        WHERE r.parent = d.id
    ) AS contributor
) AS derived
WHERE d.resource = @resource AND d.id > @after_document AND derived.version <= @max
ORDER BY d.id;

-- standing: the oldest start of a window, and the settings that pages depend on
SELECT s.oldest, s.strategy, s.switches, r.by_access, r.epoch
FROM forge_versions.setting AS s CROSS JOIN forge_versions.resource AS r
WHERE r.id = @resource;
