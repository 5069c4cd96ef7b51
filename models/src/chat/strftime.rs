//! `strftime` for chat templates.
//!
//! In: seconds since 1970 and a format. Out: a text, in English and in UTC.
//! The time is an argument: no clock is read here.

const DAY: i64 = 86_400;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Formats a time; an unknown code stays as it is.
pub fn format(seconds: i64, format: &str) -> String {
    let (day, time) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, of_month) = date(day);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let weekday = WEEKDAYS[day.rem_euclid(7) as usize];
    let name = MONTHS[month as usize - 1];
    let code = |c: char| match c {
        'Y' => year.to_string(),
        'y' => format!("{:02}", year.rem_euclid(100)),
        'm' => format!("{month:02}"),
        'd' => format!("{of_month:02}"),
        'H' => format!("{hour:02}"),
        'I' => format!("{:02}", (hour + 11) % 12 + 1),
        'M' => format!("{minute:02}"),
        'S' => format!("{second:02}"),
        'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
        'B' => name.to_owned(),
        'b' => name[..3].to_owned(),
        'A' => weekday.to_owned(),
        'a' => weekday[..3].to_owned(),
        '%' => "%".to_owned(),
        other => format!("%{other}"),
    };
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match chars.clone().next().filter(|_| c == '%') {
            Some(named) => {
                text += &code(named);
                chars.next();
            }
            None => text.push(c),
        }
    }
    text
}

/// Year, month and day from days since 1970, by eras of 400 years that start in March.
fn date(day: i64) -> (i64, i64, i64) {
    let from_era = day + 719_468; // days from March of the year 0
    let era = from_era.div_euclid(146_097);
    let of_era = from_era.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(format(0, "%A %d %B %Y %H:%M:%S"), "Thursday 01 January 1970 00:00:00");
        assert_eq!(format(951_827_696, "%d %b %Y, %I %p"), "29 Feb 2000, 12 PM");
        assert_eq!(format(-1, "%Y-%m-%d %a %y 100%% %q"), "1969-12-31 Wed 69 100% %q");
        assert_eq!(format(1_721_952_000, "%d %b %Y"), "26 Jul 2024");
    }
}
