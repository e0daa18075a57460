//! S13 for the config drive, whose label is not in the document.

use super::super::{Context, DiskPlan};
use super::remains;
use crate::bind::identity;
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::facts::DiskFacts;
use crate::steps::config_drive::{LABEL, NAME};

/// Refuses a second volume with the label of the config drive: cloud-init takes the first one that
/// it finds.
pub(super) fn other(
    context: &Context<'_>,
    plan: Option<&DiskPlan>,
    disk: &DiskFacts,
) -> Option<ProvisionDiagnostic> {
    let document = context.document;
    document.sections.config_drive.as_ref().filter(|_| document.is_queued(NAME))?;
    let is_drive = |label: &String| label.eq_ignore_ascii_case(LABEL);
    let labelled =
        disk.signatures.iter().filter(|found| found.label.as_ref().is_some_and(is_drive));
    let other = labelled.into_iter().find(|found| remains(context, plan, disk, found))?;
    let what = format!(
        "disk `{}` has a volume with the label of the config drive; cloud-init may read that one",
        disk.kernel_name
    );
    let found = ProvisionDiagnostic::new(Code::Duplicate, "config_drive", what);
    let hint = "detach that disk, relabel its volume, or name the disk with the kinds to wipe";
    Some(found.evidence([identity(disk), other.to_string()]).hint(hint))
}
