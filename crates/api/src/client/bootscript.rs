//! Requests of booting machines.

use bytes::Bytes;

use super::{Client, ClientError, whole};

impl Client {
    /// The boot script of a machine (`mac`, `name` or `nid`), or, unless `recorded`, the inputs of
    /// that script; such a request leaves no trace in the boot history.
    pub async fn bootscript(
        &self,
        (key, value): (&str, &str),
        recorded: bool,
    ) -> Result<Bytes, ClientError> {
        let call = self.get(&["boot", "v1", "bootscript"]).query(key, Some(value));
        whole(call.flag("json", !recorded).ordinary().send().await?, false).await
    }
}
