//! `lily report`: a page with the figures of records.

use crate::cli::ReportArgs;
use crate::failure::Failure;
use crate::record::write_page;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let mut records = Vec::new();
    for path in &args.records {
        let text = std::fs::read(path).map_err(|e| Failure::file("read the record", path, e))?;
        records.push((path.display().to_string(), text));
    }
    write_page(&records, &args.output)
}
