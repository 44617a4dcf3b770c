//! Readings of a device.

use crate::gpu::fakes::Fakes;
use zbench_kernels::cuda::gpu::{Absent, Library, Nvml, Search, Throttle};

#[test]
fn a_device_is_read() {
    let fakes = Fakes::all();
    let nvml = Nvml::load(&fakes.search()).unwrap();
    assert_eq!(nvml.driver_version().unwrap(), "580.65.06");
    let device = &fakes.probe().devices.unwrap()[0];
    let reading = nvml.watch(device).unwrap().read();
    assert_eq!((reading.sm_mhz, reading.memory_mhz, reading.celsius), (Ok(1980), Ok(2619), Ok(41)));
    assert_eq!((reading.power_mw, reading.energy_mj), (Ok(512_345), Ok(1 << 40)));
    assert_eq!(reading.power_limit_mw, Err("Not Supported (code 3)".into()), "what it does not tell is told");
    assert_eq!(reading.throttle, Ok(vec![Throttle::PowerCap]));
    assert_eq!((reading.used_bytes, reading.reserved_bytes), (Ok(3 << 30), Ok(600 << 20)));
}

#[test]
fn a_device_is_found_by_its_place_where_its_id_is_not_known() {
    let fakes = Fakes::all();
    fakes.set("devices", 2);
    fakes.tell("libnvidia-ml.so.1", "fake_uuid", 0);
    let nvml = Nvml::load(&fakes.search()).unwrap();
    let devices = fakes.probe().devices.unwrap();
    assert!(nvml.watch(&devices[0]).is_ok());
    let error = nvml.watch(&devices[1]).err().unwrap();
    assert!(error.contains(&devices[1].uuid) && error.contains("0000:0B:00.0: Not Found (code 6)"), "{error}");
}

#[test]
fn what_is_missing_has_a_reason() {
    let fakes = Fakes::all();
    fakes.tell("libnvidia-ml.so.1", "fake_start", 9);
    let error = Nvml::load(&fakes.search()).unwrap_err();
    assert!(
        matches!(&error, Absent::Failed { library: Library::Nvml, reason } if reason.contains("code 9")),
        "{error}"
    );
    match Nvml::load(&Search::default()) {
        Ok(nvml) => println!("this machine has one: {nvml:?}"),
        Err(error) => assert!(error.to_string().contains("libnvidia-ml.so.1"), "{error}"),
    }
}
