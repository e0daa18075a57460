//! What a booting machine asks.

use bytes::Bytes;

use super::{Client, ClientError, whole};

impl Client {
    /// The script for who is asking (`mac`, `name` or `nid`), or, unless `recorded`, what it would
    /// be made of: of that nothing is kept.
    pub async fn bootscript(
        &self,
        (key, value): (&str, &str),
        recorded: bool,
    ) -> Result<Bytes, ClientError> {
        let call = self.get(&["boot", "v1", "bootscript"]).query(key, Some(value));
        whole(call.flag("json", !recorded).ordinary().send().await?, false).await
    }
}
