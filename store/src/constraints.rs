//! Constraints on rows that the types of columns cannot express.
//!
//! New databases have no CHECK constraints: SQLite parses all of them whenever a process opens the database, which took
//! a fifth of the instructions of `list`. The types of the model guarantee the conditions. Debug builds check each
//! change of a row, so that tests find a violation; migrations and examinations of a whole database check all rows.

use rusqlite::Connection;

/// The constraints of a table. As in a CHECK, a condition that is NULL holds.
struct Constraints {
    table: &'static str,
    /// The columns of the primary key.
    key: &'static [&'static str],
    conditions: &'static [&'static str],
}

/// The condition that a column has JSON of this type, and is not NULL. json_type() alone would fail for malformed JSON,
/// and with it the examination of all rows.
macro_rules! is_json {
    ($column:literal, $type:literal) => {
        concat!("iif(json_valid(", $column, "), json_type(", $column, "), '') = '", $type, "'")
    };
}

/// Each phase owns the columns that its conditions name, and no other phase has them (model, phase.rs).
const POD: Constraints = Constraints {
    table: "pod",
    key: &["id"],
    conditions: &[
        "length(id) = 36",
        "generation >= 0",
        "phase IN ('embryo', 'preparing', 'aborted-prepare', 'prepared', 'running', 'exited', 'starting', 'garbage')",
        is_json!("user_annotations", "object"),
        is_json!("user_labels", "object"),
        "was IN ('aborted', 'prepared', 'exited')",
        concat!("networks IS NULL OR ", is_json!("networks", "array")),
        "sandbox IN (0, 1)",
        "paused IN (0, 1)",
        "cgroup LIKE '/%'",
        "restart_at IS NULL OR phase IN ('exited', 'starting')",
        "restart_tries >= 0",
        "restart_count >= 0",
        "stop_requested IN (0, 1, 2)",
        "namespace NOT IN ('', 'system')",
        "log_dir LIKE '/%'",
        "limit_changes >= 0",
        "length(journal) = 48",
        "paused = 0 OR phase = 'running'",
        "phase NOT IN ('embryo', 'preparing', 'aborted-prepare') OR prepared_at IS NULL",
        "phase NOT IN ('prepared', 'running', 'exited', 'starting') OR prepared_at IS NOT NULL",
        "(phase = 'aborted-prepare') = (aborted_at IS NOT NULL)",
        "(phase = 'running') = (supervisor_pid IS NOT NULL)",
        "(phase = 'running') = (supervisor_start IS NOT NULL)",
        "(phase = 'running') = (supervisor_boot IS NOT NULL)",
        "(phase IN ('running', 'exited', 'starting') OR was IS 'exited') = (started_at IS NOT NULL)",
        "(phase IN ('exited', 'starting') OR was IS 'exited') = (ended_at IS NOT NULL)",
        "(ended_at IS NULL) = (exit_code IS NULL)",
        "(ended_at IS NULL) = (reason IS NULL)",
        "ended_at IS NOT NULL OR failed_app IS NULL",
        "(phase = 'garbage') = (marked_at IS NOT NULL)",
        "(phase = 'garbage') = (was IS NOT NULL)",
        "phase = 'garbage' OR deleting_at IS NULL",
        "started_at IS NOT NULL OR networks IS NULL",
        "name IS NULL OR phase NOT IN ('aborted-prepare', 'garbage')",
    ],
};

const APP: Constraints = Constraints {
    table: "app",
    key: &["pod", "position"],
    conditions: &[
        "position >= 0",
        is_json!("annotations", "object"),
        "state IN ('waiting', 'creating', 'created', 'running', 'exited')",
        "attempt >= 0",
        "exit_code BETWEEN 0 AND 255",
        "signal BETWEEN 0 AND 255",
        "oom IN (0, 1)",
        "readiness IN ('starting', 'ready')",
        "paused IN (0, 1)",
        "health IN ('starting', 'healthy', 'unhealthy')",
        "health_number >= 0",
        "length(app_id) = 64",
        is_json!("labels", "object"),
        "restart_at IS NULL OR state = 'exited'",
        "oom_kills >= 0",
        "oom_level IN ('app', 'pod', 'host')",
        "log_path NOT LIKE '/%'",
        "limit_changes >= 0",
        "paused = 0 OR state = 'running'",
        "(state IN ('waiting', 'creating', 'created')) = (attempt IS NULL)",
        "state NOT IN ('waiting', 'creating', 'created') OR started_at IS NULL",
        "state <> 'running' OR started_at IS NOT NULL",
        "(state = 'running') = (pid IS NOT NULL)",
        "(state = 'exited') = (ended_at IS NOT NULL)",
        "(state = 'exited') = (oom IS NOT NULL)",
        "state = 'exited' OR (exit_code IS NULL AND signal IS NULL)",
        "exit_code IS NULL OR signal IS NULL",
    ],
};

/// The other tables.
const OTHERS: [Constraints; 8] = [
    Constraints { table: "feature", key: &["name"], conditions: &["kind IN ('compatible', 'incompatible')"] },
    Constraints {
        table: "state",
        key: &["one"],
        conditions: &["one = 1", "next_seq > 0", "trimmed >= 0 AND trimmed < next_seq", "durable_commits >= 0"],
    },
    Constraints { table: "event", key: &["seq"], conditions: &[is_json!("data", "object")] },
    Constraints { table: "layer", key: &["chain"], conditions: &["size >= 0", "entries >= 0"] },
    Constraints { table: "image", key: &["id"], conditions: &["format IN ('oci', 'docker', 'appc')", "size >= 0"] },
    Constraints { table: "image_layer", key: &["image", "position"], conditions: &["position >= 0"] },
    Constraints { table: "volume", key: &["name"], conditions: &[is_json!("labels", "object"), "deleting IN (0, 1)"] },
    Constraints {
        table: "schedule",
        key: &["name"],
        conditions: &[
            "revision > 0",
            "enabled IN (0, 1)",
            is_json!("manifest", "object"),
            concat!("timer IS NULL OR ", is_json!("timer", "object")),
            "runs >= 0",
            "failures >= 0",
            "(failures = 0) = (failure IS NULL)",
        ],
    },
];

/// The constraints of all tables.
fn all() -> impl Iterator<Item = &'static Constraints> {
    [&POD, &APP].into_iter().chain(&OTHERS)
}

impl Constraints {
    /// The first condition that a row does not meet.
    fn violated(&self, conn: &Connection) -> rusqlite::Result<Option<&'static str>> {
        // One query for all: each reads the whole table.
        let all: Vec<String> = self.conditions.iter().map(|condition| format!("ifnull(({condition}), 1)")).collect();
        if !self.is_violated(conn, &all.join(" AND "))? {
            return Ok(None);
        }
        for condition in self.conditions {
            if self.is_violated(conn, condition)? {
                return Ok(Some(condition));
            }
        }
        Ok(None)
    }

    fn is_violated(&self, conn: &Connection, condition: &str) -> rusqlite::Result<bool> {
        let query = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE NOT ({condition}))", self.table);
        conn.query_row(&query, [], |row| row.get(0))
    }

    /// SQL of temporary triggers that refuse an inserted or updated row that violates a condition.
    fn triggers(&self) -> String {
        let Self { table, key, conditions } = self;
        let is_row: Vec<String> = key.iter().map(|column| format!("{column} = NEW.{column}")).collect();
        let refuse = |condition: &&str| {
            let text = condition.replace('\'', "");
            let is_row = is_row.join(" AND ");
            format!("SELECT RAISE(ABORT, 'constraint: {text}') FROM {table} WHERE {is_row} AND NOT ({condition});")
        };
        let body: String = conditions.iter().map(refuse).collect();
        let trigger =
            |event: &str| format!("CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON {table} BEGIN {body} END;");
        ["INSERT", "UPDATE"].map(trigger).concat()
    }
}

/// A line for each table with a row that violates a constraint: `a row of table 'pod' does not meet: …`.
pub(crate) fn violations(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut lines = Vec::new();
    for constraints in all() {
        if let Some(condition) = constraints.violated(conn)? {
            lines.push(format!("a row of table '{}' does not meet: {condition}", constraints.table));
        }
    }
    Ok(lines)
}

/// Has the connection refuse changes that violate a constraint.
pub(crate) fn enforce(conn: &Connection) -> rusqlite::Result<()> {
    all().try_for_each(|constraints| conn.execute_batch(&constraints.triggers()))
}
