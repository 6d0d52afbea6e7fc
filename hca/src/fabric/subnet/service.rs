//! Service records: the services that ports have registered (IBA 15.2.5.14).

use std::ops::Range;

use super::{INVALID_REQUEST, NO_RECORDS, NO_RESOURCES, TOO_MANY_RECORDS};

/// Bytes of a record, and their number of words of 8 bytes.
const SIZE: usize = 176;
pub(super) const WORDS: u16 = (SIZE / 8) as u16;

/// Most services.
pub(super) const MOST: usize = 64;

/// The fields that the first bits of a component mask select: ID, GID, P_Key, reserved, lease, key,
/// name.
const FIELDS: [Range<usize>; 7] = [0..8, 8..24, 24..26, 26..28, 28..32, 32..48, 48..112];

/// The fields that name a record: ID, GID and P_Key.
const IDENTITY: Range<usize> = 0..26;

/// A record in its wire format.
pub(super) type Record = [u8; SIZE];

/// The registered services. Leases do not expire.
#[derive(Debug, Default)]
pub(in crate::fabric) struct Services {
    records: Vec<Record>,
}

/// The record at the start of the data of a MAD, which are longer.
fn record(data: &[u8]) -> Record {
    std::array::from_fn(|at| data[at])
}

impl Services {
    /// The records whose selected fields are those of `data`. An error is a status.
    pub(super) fn find(&self, data: &[u8], components: u64) -> Result<Vec<Record>, u16> {
        if components >> FIELDS.len() != 0 {
            return Err(INVALID_REQUEST);
        }
        let wanted = record(data);
        let selected = || (0..).zip(FIELDS).filter(|(bit, _)| components >> bit & 1 != 0);
        let fits = |record: &&Record| selected().all(|(_, field)| record[field.clone()] == wanted[field]);
        Ok(self.records.iter().filter(fits).copied().collect())
    }

    /// Replaces `data` by the only record that fits.
    pub(super) fn get(&self, data: &mut [u8], components: u64) -> Result<(), u16> {
        match self.find(data, components)?[..] {
            [] => Err(NO_RECORDS),
            [found] => {
                data[..SIZE].copy_from_slice(&found);
                Ok(())
            }
            _ => Err(TOO_MANY_RECORDS),
        }
    }

    /// Registers a service, or changes it.
    pub(super) fn set(&mut self, data: &[u8]) -> Result<(), u16> {
        let new = record(data);
        match self.position(&new) {
            Some(index) => self.records[index] = new,
            None if self.records.len() == MOST => return Err(NO_RESOURCES),
            None => self.records.push(new),
        }
        Ok(())
    }

    /// Removes a service.
    pub(super) fn delete(&mut self, data: &[u8]) -> Result<(), u16> {
        let index = self.position(&record(data)).ok_or(NO_RECORDS)?;
        self.records.remove(index);
        Ok(())
    }

    /// The index of the record that is named as this one.
    fn position(&self, named: &Record) -> Option<usize> {
        self.records.iter().position(|record| record[IDENTITY] == named[IDENTITY])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: u8) -> Record {
        let mut record = [0; SIZE];
        record[7] = id;
        record
    }

    #[test]
    fn registration_of_the_same_service_changes_it() {
        let mut services = Services::default();
        let mut service = named(1);
        services.set(&service).unwrap();
        service[48] = b'n';
        services.set(&service).unwrap();
        assert_eq!(services.find(&named(1), 1).unwrap(), [service]);
    }

    #[test]
    fn services_above_the_limit_are_refused() {
        let mut services = Services::default();
        for id in 0..MOST as u8 {
            services.set(&named(id)).unwrap();
        }
        assert_eq!(services.set(&named(MOST as u8)), Err(NO_RESOURCES));
        services.set(&named(0)).unwrap();
        assert_eq!(services.find(&named(0), 0).unwrap().len(), MOST);
    }
}
