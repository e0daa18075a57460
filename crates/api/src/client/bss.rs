//! Boot parameters, of hoist and of other servers that speak BSS.

use reqwest::Method;
use serde_json::Value;

use super::{Client, ClientError};
use crate::bss::{ImportParameters, ImportedParameters};

/// Boot parameters as BSS has them.
impl Client {
    /// Every element, as BSS lists them: works on BSS itself too. `null` is an empty list there.
    pub async fn bss_parameters(&self) -> Result<Vec<Value>, ClientError> {
        let call = self.get(&["boot", "v1", "bootparameters"]).ordinary();
        Ok(call.value::<Option<Vec<Value>>>().await?.unwrap_or_default())
    }

    /// Every host of the inventory, as BSS lists them: works on BSS itself too.
    pub async fn bss_hosts(&self) -> Result<Vec<Value>, ClientError> {
        let call = self.get(&["boot", "v1", "hosts"]).ordinary();
        Ok(call.value::<Option<Vec<Value>>>().await?.unwrap_or_default())
    }

    /// The elements of one key: an xname, a MAC, `nid<number>` or a tag.
    pub async fn bss_parameters_of(&self, key: &str) -> Result<Vec<Value>, ClientError> {
        let call = self.get(&["boot", "v1", "bootparameters"]).ordinary();
        call.query("name", Some(key)).value().await
    }

    pub async fn import_parameters(
        &self,
        parameters: Vec<Value>,
        dry_run: bool,
        affects: Option<usize>,
    ) -> Result<ImportedParameters, ClientError> {
        let affects = affects.map(|affects| affects.to_string());
        self.call(Method::POST, &["boot", "v2", "parameters", "import"])
            .flag("dry_run", dry_run)
            .query("affects", affects.as_deref())
            .json(&ImportParameters { parameters })
            .value()
            .await
    }
}
