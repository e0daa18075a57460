//! The settings of discovery: `cluster.discovery…`.

use hoist_discovery::{Network, Selection};

use crate::settings::{SettingError, Settings};

/// Where queries are answered; `None` if this is switched off.
pub(super) fn settings(settings: &Settings) -> Result<Option<Network>, SettingError> {
    match settings.text("cluster.discovery") {
        "on" => {}
        "off" => return Ok(None),
        _ => return Err(settings.wrong("cluster.discovery", "use `on` or `off`".to_owned())),
    }
    let port = settings.parse("cluster.discovery_port")?;
    if port == 0 {
        return Err(settings.wrong("cluster.discovery_port", "0 is not a port".to_owned()));
    }
    let names: Vec<_> = settings.list("cluster.discovery_interfaces").map(str::to_owned).collect();
    let interfaces = match names.as_slice() {
        [] => Selection::Suitable,
        _ => Selection::Named(names),
    };
    Ok(Some(Network { interfaces, port, ..Network::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &'static str, value: &str) -> Result<Option<Network>, SettingError> {
        let mut given = Settings::new();
        given.set_flag(key, "--test", Some(value.to_owned()));
        settings(&given)
    }

    #[test]
    fn discovery_is_on_unless_switched_off() {
        assert_eq!(settings(&Settings::new()).unwrap(), Some(Network::default()));
        assert_eq!(read("cluster.discovery", "off").unwrap(), None);
        let network = read("cluster.discovery_interfaces", "eth0, eth1").unwrap().unwrap();
        let names = ["eth0", "eth1"].map(str::to_owned).to_vec();
        assert_eq!(network.interfaces, Selection::Named(names));
        assert_eq!(read("cluster.discovery_port", "4711").unwrap().unwrap().port, 4711);
        for (key, value) in [
            ("cluster.discovery", "maybe"),
            ("cluster.discovery_port", "0"),
            ("cluster.discovery_port", "70000"),
        ] {
            read(key, value).expect_err(value);
        }
    }
}
