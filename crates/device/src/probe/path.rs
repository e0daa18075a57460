//! The names of a disk below `/dev/disk/by-path`, as udev makes them from `/sys`. Which disk has
//! which name does not belong here.

use std::path::Path;

use hoist_provision::facts::Bus;

use super::{entries, name_of, number, pci_address, text};

/// The names of a disk at this place of `/sys`, the one of present udev first. Empty for buses
/// whose names are not known here.
pub(super) fn by_path(
    name: &str,
    place: &Path,
    bus: Option<Bus>,
    hctl: Option<&str>,
) -> Vec<String> {
    let Some((pci, bus)) = pci_address(place).zip(bus) else { return Vec::new() };
    let address = hctl.and_then(address);
    let names = match bus {
        Bus::Nvme => number(&place.join("nsid")).map(|nsid| vec![format!("nvme-{nsid}")]),
        Bus::Virtio if name.starts_with("vd") => return vec![format!("pci-{pci}")],
        Bus::Ata => ata(place, address),
        Bus::Sas => sas(place, address),
        Bus::Scsi | Bus::Virtio => scsi(place, address).map(|name| vec![name]),
        _ => None,
    };
    names.into_iter().flatten().map(|name| format!("pci-{pci}-{name}")).collect()
}

/// Host, channel, target and logical unit.
type Address = [u64; 4];

fn address(hctl: &str) -> Option<Address> {
    let numbers: Option<Vec<u64>> = hctl.split(':').map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// The directory above a disk whose name begins so.
fn above<'a>(place: &'a Path, start: &str) -> Option<&'a Path> {
    place.ancestors().find(|above| name_of(above).is_some_and(|name| name.starts_with(start)))
}

/// Of a class that the directory of a device holds under the device's own name.
fn of_class(device: &Path, class: &str, file: &str) -> Option<String> {
    text(&device.join(class).join(name_of(device)?).join(file))
}

fn ata(place: &Path, address: Option<Address>) -> Option<Vec<String>> {
    let port: u64 = of_class(above(place, "ata")?, "ata_port", "port_no")?.parse().ok()?;
    let [_, channel, target, _] = address.unwrap_or_default();
    let now = match (channel, target) {
        (0, 0) => format!("ata-{port}"),
        (0, target) => format!("ata-{port}.{target}"),
        (channel, _) => format!("ata-{port}.{channel}.0"),
    };
    // The name before udev knew ports.
    let old = port.checked_sub(1).map(|host| format!("scsi-{host}:{channel}:{target}:0"));
    Some([now].into_iter().chain(old).collect())
}

/// A disk with one link is named by the link, and every disk by its own address in older versions.
fn sas(place: &Path, address: Option<Address>) -> Option<Vec<String>> {
    let end = above(place, "end_device-")?;
    let [_, _, _, lun] = address?;
    let sas_address = |device: &Path| of_class(device, "sas_device", "sas_address");
    let by_address = sas_address(end).map(|address| format!("sas-{address}-lun-{lun}"));
    let port = end.parent()?;
    let has_one_link = of_class(port, "sas_port", "num_phys").as_deref() == Some("1");
    let by_link = || {
        let phy = of_class(end, "sas_device", "phy_identifier")?;
        let expander = port.parent().and_then(sas_address);
        let expander = expander.map(|address| format!("exp{address}-")).unwrap_or_default();
        Some(format!("sas-{expander}phy{phy}-lun-{lun}"))
    };
    let by_link = if has_one_link { by_link() } else { None };
    Some(by_link.into_iter().chain(by_address).collect())
}

/// Hosts are counted from the first one of their controller.
fn scsi(place: &Path, address: Option<Address>) -> Option<String> {
    let [host, channel, target, lun] = address?;
    let controller = above(place, &format!("host{host}"))?.parent()?;
    let hosts = entries(controller).into_iter().filter_map(|name| {
        let number: u64 = name.strip_prefix("host")?.parse().ok()?;
        Some(number)
    });
    let host = host - hosts.min().filter(|first| *first <= host)?;
    Some(format!("scsi-{host}:{channel}:{target}:{lun}"))
}
